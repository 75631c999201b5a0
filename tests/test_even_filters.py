"""Filters of equal spread, and biases and norms that follow new weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tersify
from tersify.calibration import Calibration
from tersify.even_filters import even_filters_
from tersify.lab.estimates import estimated, widths, within
from tersify.norm_shifts import follow_, moments_of


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, groups=16, bias=False),
        nn.BatchNorm2d(16),
        nn.Flatten(),
        nn.Linear(16 * 16, 10),
    )
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
            module.running_mean.normal_()
            module.running_var.uniform_(0.001, 3)
    # filters whose sizes differ a hundredfold, and one that is all zero
    with torch.no_grad():
        net[0].weight *= torch.logspace(-1, 1, 16).view(-1, 1, 1, 1)
        net[3].weight[5] = 0
    return net.eval()


def spreads(weight: torch.Tensor) -> torch.Tensor:
    return weight.detach().flatten(1).square().mean(1).sqrt()


def test_filters_before_norms_get_one_spread_and_outputs_stay():
    net, x = network(), torch.randn(7, 3, 8, 8)
    wanted = net(x)
    assert even_filters_(net, x[:1]) == ["0.weight", "3.weight"]
    assert torch.allclose(net(x), wanted, rtol=1e-4, atol=1e-5)
    even = spreads(net[0].weight)
    assert torch.allclose(even, even[0].expand(16), rtol=1e-5)
    assert all((m.running_var > 0).all() for m in net if isinstance(m, nn.BatchNorm2d))


def test_a_layer_with_another_reader_stays():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x)
            return self.norm(y) + y

    net = Both().eval()
    assert even_filters_(net, torch.randn(1, 2, 9)) == []


def test_a_norm_that_two_layers_share_stays():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5)
            self.norm = nn.BatchNorm1d(5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.b(self.norm(self.a(x))))

    assert even_filters_(Shared().eval(), torch.randn(2, 5)) == []


def test_norms_without_running_statistics_stay():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)
    )
    assert even_filters_(net.eval(), torch.randn(2, 3, 6, 6)) == []


def test_a_shift_of_the_weights_is_taken_back_by_norms_and_biases():
    net, x = network(), torch.rand(64, 3, 8, 8)
    data = Calibration([(x, None)])
    wanted, before = net(x), moments_of(net, data)
    with torch.no_grad():
        net[0].weight += 0.05
        net[6].weight += 0.02
    moved = net(x)
    follow_(net, before, data)
    followed = net(x)
    assert (followed - wanted).abs().mean() < 0.5 * (moved - wanted).abs().mean()
    assert torch.allclose(followed.mean(0), wanted.mean(0), atol=1e-4)


def test_weights_that_did_not_change_leave_norms_and_biases_as_they_were():
    net, x = network(), torch.rand(8, 3, 8, 8)
    data = Calibration([(x, None)])
    state = {name: t.clone() for name, t in net.state_dict().items()}
    follow_(net, moments_of(net, data), data)
    for name, tensor in net.state_dict().items():
        assert torch.allclose(tensor, state[name], rtol=1e-5, atol=1e-6), name


def test_a_failing_batch_puts_everything_back():
    net, x = network(), torch.rand(8, 3, 8, 8)
    data = Calibration([(x, None), (x, None)])
    before = moments_of(net, data)
    state = {name: t.clone() for name, t in net.state_dict().items()}
    with torch.no_grad():
        net[0].weight += 0.05
    broken = Calibration([(x, None), (x[:, :2], None)])
    with pytest.raises(RuntimeError):
        follow_(net, before, broken)
    for name, tensor in net.state_dict().items():
        assert name == "0.weight" or torch.equal(tensor, state[name])


def test_compress_keeps_the_statistics_of_training_and_moves_them():
    net, x = network(), torch.rand(64, 3, 8, 8) + 3.0  # far from what the norms expect
    wanted = net(x)
    labels = wanted.argmax(1)
    tersify.compress_(net, "lut-4", calibration=[(x, labels)])
    given = net(x)
    assert torch.allclose(given.mean(0), wanted.mean(0), atol=1e-3)
    # Statistics of these inputs themselves would be far from those of training.
    assert (given - wanted).std() < 0.3 * wanted.std()


def test_wider_tables_take_more_bytes_and_do_less_damage():
    net, x = network(), torch.rand(32, 3, 8, 8)
    data = Calibration([(x, net(x).argmax(1))])
    for choices in estimated(net, data, widths()).values():
        sizes, damages = (
            [getattr(c, k) for c in choices] for k in ("size_bytes", "damage")
        )
        assert damages == sorted(damages, reverse=True)
        assert sizes[0] < sizes[-1]


def test_a_network_fits_its_budget_and_more_bytes_come_nearer(tmp_path):
    net, x = network(), torch.rand(32, 3, 8, 8)
    even_filters_(net, x[:1])
    data = Calibration([(x, net(x).argmax(1))])
    errors = []
    for budget in (2200, 3500):
        made, packed = within(net, data, budget)
        assert tersify.save(packed, tmp_path / "m.terse") <= budget
        again = tersify.load(tmp_path / "m.terse", into=network(1))
        assert torch.equal(again.eval()(x), made(x))
        errors.append((made(x) - net(x)).square().mean().item())
    assert errors[1] < errors[0]


def test_a_budget_that_nothing_fits_is_refused():
    net, x = network(), torch.rand(8, 3, 8, 8)
    with pytest.raises(ValueError, match="give it more"):
        within(net, Calibration([(x, net(x).argmax(1))]), 900)
