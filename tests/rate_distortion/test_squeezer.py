"""Fewer bytes after training: codes are decided by their bits and their damage."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

import tersify
from tersify.rate_distortion import Squeezer
from tersify.tensor.model import load_state


def trained():
    """A small network that tells which quarter of its input is largest."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4)
    )
    x = torch.randn(2048, 32)
    y = x.view(-1, 4, 8).sum(2).argmax(1)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(150):
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval(), x, y


def accuracy(net, x, y):
    with torch.no_grad():
        return float((net(x).argmax(1) == y).float().mean())


def test_a_higher_price_makes_a_smaller_file_and_a_low_one_keeps_the_accuracy(tmp_path):
    net, x, y = trained()
    before = copy.deepcopy(net.state_dict())
    squeezer = Squeezer(net, list(zip(x.split(64), y.split(64), strict=True)))
    sizes, scores = [], []
    for price in (0.001, 0.03, 0.5):
        packed = squeezer.at(price)
        sizes.append(tersify.save(packed, tmp_path / "net.terse"))
        scores.append(accuracy(load_state(packed, copy.deepcopy(net)).eval(), x, y))
    assert sizes[0] > sizes[1] > sizes[2]
    assert scores[0] > accuracy(net, x, y) - 0.01
    assert scores[0] >= scores[2]
    assert all(
        torch.equal(a, b)
        for a, b in zip(net.state_dict().values(), before.values(), strict=True)
    )


def test_bits_that_cost_nothing_leave_the_network_as_it_is():
    net, x, y = trained()
    packed = Squeezer(net, [(x[:256], y[:256])]).at(0.0)
    assert not packed.compressed()
    for name, tensor in net.state_dict().items():
        assert torch.equal(packed[name], tensor), name


def test_the_outputs_come_back_as_bits_become_cheap():
    net, x, y = trained()
    squeezer = Squeezer(net, list(zip(x.split(64), y.split(64), strict=True)))
    errors = []
    with torch.no_grad():
        for price in (0.1, 1e-3, 1e-5):
            made = load_state(squeezer.at(price), copy.deepcopy(net)).eval()
            errors.append(float((made(x) - net(x)).square().mean() / net(x).var()))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-3


def test_bytes_fall_with_the_price(tmp_path):
    net, x, y = trained()
    squeezer = Squeezer(net, list(zip(x.split(64), y.split(64), strict=True)))
    sizes = [
        tersify.save(squeezer.at(price), tmp_path / "net.terse")
        for price in (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1)
    ]
    assert sizes == sorted(sizes, reverse=True)


def test_codes_of_a_file_keep_their_levels(tmp_path):
    net, x, y = trained()
    packed = tersify.compress_(net, "lut-4")
    first = tersify.save(packed, tmp_path / "lut.terse")
    loaded = tersify.load(tmp_path / "lut.terse", into=copy.deepcopy(net)).eval()
    squeezed = Squeezer(loaded, list(zip(x.split(64), y.split(64), strict=True))).at(
        0.02
    )
    assert tersify.save(squeezed, tmp_path / "small.terse") < first
    for name, tensor in packed.compressed().items():
        if (tensor.codebook == 0).any():
            assert torch.equal(squeezed[name].codebook, tensor.codebook)


def test_bits_count_beside_the_damage(tmp_path):
    """At the same step sizes, codes by bits and damage take fewer bytes than codes by
    the nearest level.
    """
    net, x, y = trained()
    squeezer = Squeezer(net, list(zip(x.split(64), y.split(64), strict=True)))
    decided = squeezer.at(0.05).compressed()
    for weight in squeezer._columns:
        weight.start_(0.05 * squeezer._unit)
    nearest, best = (
        tersify.save(codes, tmp_path / "codes.terse")
        for codes in (squeezer._packed([])[0], decided)
    )
    assert best < nearest


def test_weights_whose_inputs_are_not_known_are_squeezed_too(tmp_path):
    """An LSTM before a linear layer."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(16, 24, batch_first=True)
            self.head = nn.Linear(24, 4)

        def forward(self, x):
            return self.head(self.lstm(x)[0][:, -1])

    torch.manual_seed(0)
    net = Net().eval()
    x, y = torch.randn(64, 7, 16), torch.randint(0, 4, (64,))
    batches = list(zip(x.split(16), y.split(16), strict=True))
    packed = Squeezer(net, batches).at(0.01)
    assert {"lstm.weight_ih_l0", "head.weight"} <= packed.compressed().keys()
    dense = tersify.save(net.state_dict(), tmp_path / "dense.terse")
    assert tersify.save(packed, tmp_path / "net.terse") < dense / 3
    with torch.no_grad():
        close = load_state(packed, copy.deepcopy(net)).eval()(x)
        assert (close - net(x)).abs().mean() < 0.2 * net(x).std()


def test_layers_that_equal_each_other_are_squeezed(tmp_path):
    """The file stores such a weight once, so it has one price."""
    net, x, y = trained()
    twice = nn.Sequential(net[0], net[1], nn.Linear(64, 64), nn.Linear(64, 64), net[3])
    twice[3].load_state_dict(twice[2].state_dict())
    packed = Squeezer(twice.eval(), [(x[:256], y[:256])]).at(0.5)
    zeros = [float((packed[f"{i}.weight"].codes == 0).float().mean()) for i in (2, 3)]
    assert min(zeros) > 0.1


def test_a_network_in_half_precision_keeps_its_type():
    net, x, y = trained()
    net = net.to(torch.bfloat16)
    batches = [(x[:256].to(torch.bfloat16), y[:256])]
    packed = Squeezer(net, batches).at(0.01)
    assert packed["0.weight"].to_dense().dtype == torch.bfloat16
