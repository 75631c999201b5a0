"""Training for bytes: what the method expects of the file is what the coder writes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tersify
from tersify import CompressedTensor, Recipe, Rule
from tersify.codec.costs import priced
from tersify.lab import network
from tersify.methods import Rate, Ternary, TernaryTarget, Uniform

STEPS = 24


def trained(model, x, chain, steps=STEPS, lr=1e-2):
    """A session after some steps towards random labels."""
    torch.manual_seed(1)
    labels = torch.randint(0, 10, (len(x),))
    session = tersify.attach(model, Recipe(rules=(Rule(methods=chain),)), steps=steps)
    optimizer = torch.optim.Adam(session.param_groups(), lr=lr)
    model.train()
    for step in range(steps):
        session.step(x, labels)
        loss = F.cross_entropy(model(x), labels) + session.penalty()
        optimizer.zero_grad()
        loss.backward()
        # what is expected is expected of the weights as the last step found them
        if step + 1 < steps:
            optimizer.step()
    return session


def residual():
    torch.manual_seed(0)
    return network("resnet20", width=0.75, depth=0.34), torch.randn(16, 3, 8, 8)


def convolutional():
    torch.manual_seed(0)
    return network("digits-cnn", width=1.0), torch.randn(16, 1, 8, 8)


def linear():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)
    ), torch.randn(32, 64)


TARGET = TernaryTarget(sparsity=0.5, spread=0.2, scale="tensor")
NETWORKS = [residual, convolutional, linear]


CHAINS = {
    "ternary": ((TARGET,), 0.6),
    "levels": ((Uniform(bits=4),), 1.5),
    "pruned": ((), 10.0),
}


CASES = [(make, "ternary") for make in NETWORKS] + [
    (residual, "levels"),
    (linear, "levels"),
    (residual, "pruned"),
]


@pytest.mark.parametrize(("make", "kind"), CASES)
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_the_file_is_as_large_as_asked_and_as_expected(make, kind, fraction, tmp_path):
    model, x = make()
    behind, bits = CHAINS[kind]
    weights = sum(p.numel() for p in model.parameters() if p.ndim > 1)
    others = sum(t.numel() for t in model.state_dict().values()) - weights
    wanted = int(fraction * bits * weights / 8) + 4 * others + 1500
    session = trained(model, x, (Rate(bytes=wanted), *behind))
    size = tersify.save(session.pack(), tmp_path / "net.terse")
    assert abs(1000 * session.figures()["kB"] - size) <= 0.02 * size
    assert size <= 1.02 * wanted


@pytest.mark.parametrize("levels", [3, 16])
def test_the_price_of_a_change_is_what_the_tables_say_of_the_changed_codes(levels):
    torch.manual_seed(0)
    codes = (torch.rand(24, 10, 3, 3) < 0.2).to(torch.uint8) * torch.randint(
        1, levels, (24, 10, 3, 3)
    )
    codebook = (
        torch.linspace(-1, 1, levels).roll(levels // 2 + 1)
        if levels > 3
        else torch.tensor([0.0, 1.0, -1.0])
    )
    codebook[0] = 0.0
    tensor = CompressedTensor(
        shape=tuple(codes.shape), codes=codes.to(torch.uint8), codebook=codebook
    )
    (box,) = priced({"w": tensor}).boxes_of("w", torch.device("cpu"))
    flat = tensor.codes.reshape(-1)
    others = torch.randint(0, levels, flat.shape, dtype=torch.uint8)
    change, before = box.change(flat, others), box.total_bits(flat)
    for index in range(0, flat.numel(), 97):
        other = flat.clone()
        other[index] = others[index]
        assert float(box.total_bits(other) - before) == pytest.approx(
            float(change[index]), abs=1e-3
        )


def test_prices_add_up_to_the_stream():
    torch.manual_seed(0)
    codes = (torch.rand(64, 64, 3, 3) < 0.05).to(torch.uint8) * torch.randint(
        1, 3, (64, 64, 3, 3)
    )
    tensor = CompressedTensor(
        shape=(64, 64, 3, 3),
        codes=codes.to(torch.uint8),
        codebook=torch.tensor([0.0, 1.0, -1.0]),
    )
    file = priced({"w": tensor})
    (box,), (group,) = file.boxes_of("w", torch.device("cpu")), file.groups
    assert (
        0.97 * group.size_bytes
        <= float(box.total_bits(tensor.codes.reshape(-1))) / 8
        <= group.size_bytes
    )


def test_zeros_grow_with_lambda():
    zeros = []
    for lam in (0.1, 1.0, 5.0):
        model, x = linear()
        zeros.append(
            trained(model, x, (Rate(lam=lam), Ternary(spread=0.2, scale="tensor")))
            .pack()
            .sparsity_percent()
        )
    assert zeros[0] + 5 < zeros[1] < zeros[2] - 5


def test_a_weight_that_was_zero_returns_when_its_gradient_asks():
    model = nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.full((4, 4), 1.0))
        model.weight[0, 0] = 0.01
    session = tersify.attach(
        model, Recipe(rules=(Rule(methods=(Rate(lam=0.1, loss=0.0),)),)), steps=100
    )
    optimizer = torch.optim.SGD(session.param_groups(), lr=0.3)
    session._steps_done = 90  # λ is there
    session.sites[0].chain[0].limit.fill_(0.25)
    session._work[0].bound.shared.lam.fill_(0.1)
    assert model.weight[0, 0] == 0
    for _ in range(5):
        session.step()
        optimizer.zero_grad()
        (model.weight[0, 0] - 3).square().backward()
        optimizer.step()
    assert model.weight[0, 0] > 0


def test_without_training_the_budget_is_met_too(tmp_path):
    model, _ = residual()
    packed = tersify.compress_(
        model, Recipe(rules=(Rule(methods=(Rate(bytes=15_000), Uniform(bits=6))),))
    )
    assert 0.95 * 15_000 <= tersify.save(packed, tmp_path / "net") <= 1.02 * 15_000


def test_a_budget_that_the_rest_of_the_network_fills_is_refused():
    model, x = residual()
    with pytest.raises(
        ValueError, match=r"leave room for all that these weights are not.*give more"
    ):
        trained(model, x, (Rate(bytes=200), TARGET))


def test_a_budget_and_a_price_are_not_given_together():
    with pytest.raises(ValueError, match="give one of them"):
        Rate(bytes=1000, lam=0.5)


def test_the_loss_gains_what_the_expected_bits_cost():
    model, x = linear()
    session = trained(model, x, (Rate(lam=0.3, loss=2.0),))
    (bound,) = (work.bound for work in session._work)
    weights = sum(site.latent.numel() for site in session.sites)
    expected = 2.0 * float(bound.shared.lam) * float(bound.shared.bits) / weights
    assert float(session.penalty().detach()) == pytest.approx(expected, rel=1e-5)
    model.zero_grad()
    session.penalty().backward()
    for site in session.sites:
        near = site.latent.square() < 4 * site.chain[0].limit
        assert torch.equal(
            site.latent.grad.sign(), torch.where(near, site.latent.detach().sign(), 0.0)
        )
