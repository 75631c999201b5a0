"""Paper 1: the growing threshold, the clipped latents and the saturating
straight-through estimator.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import tersify
from tersify import Recipe, Rule
from tersify.methods import Ternary
from tersify.methods.prepared_slots import forget_prepared
from tersify.methods.threshold import TernaryTransform
from tersify.schedules import Progress
from tersify.tensor import sparsity_percent


def at_epoch(epoch: float, epochs: int = 500) -> Progress:
    return Progress(step=0, steps=1, epoch=epoch, epochs=epochs)


@pytest.mark.parametrize(
    ("regime", "f"),
    [
        ("fixed", lambda e: 0.0),
        ("linear", lambda e: e),
        ("square", lambda e: e**2),
        ("exp", math.exp),
        ("log", math.log),
        ("log10", math.log10),
    ],
)
def test_threshold_follows_equation_7(regime, f):
    method = Ternary(regime=regime, delta0=0.1, speed=0.7, cap=0.9)
    for epoch in (1.0, 1.5, 2.0, 10.0, 300.0):
        assert method.schedule(500)(at_epoch(epoch)) == pytest.approx(
            min(0.1 + 0.1 * 0.7 * f(epoch), 0.9)
        )


def test_any_function_of_the_epoch_can_be_the_regime(tmp_path):
    assert Ternary(regime=lambda e: e / 2, delta0=0.1, speed=1).schedule(9)(
        at_epoch(4, 9)
    ) == pytest.approx(0.3)
    (tmp_path / "mine.py").write_text("def halves(epoch):\n    return epoch / 2\n")
    named = Ternary(regime=f"{tmp_path / 'mine.py'}:halves", delta0=0.1, speed=1)
    assert named.schedule(9)(at_epoch(4, 9)) == pytest.approx(0.3)


def test_a_stretched_regime_ends_where_the_long_one_ended():
    long = Ternary(regime="log", cap=1.0, speed=0.5).schedule(500)
    short = Ternary(regime="log", cap=1.0, speed=0.5, over=500).schedule(50)
    assert long(at_epoch(500)) < 0.5  # far from the cap, where any two would meet
    for fraction in (0.0, 0.25, 0.5, 1.0):
        assert short(at_epoch(1 + 49 * fraction, 50)) == pytest.approx(
            long(at_epoch(1 + 499 * fraction))
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"delta0": 0.0}, r"Δ0.*\(0, 1\].*got 0.0"),
        ({"delta0": -1}, "got -1"),
        ({"cap": 0.0}, r"Δf.*\(0, 1\]"),
        ({"cap": 1.5}, "got 1.5"),
        ({"sparsity": 1.0}, r"sparsity must be in \(0, 1\), got 1.0"),
        ({"sparsity": 0.9, "cap": 0.97}, "both end the growth; give one of them"),
        ({"cap": 0.05}, "at least delta0"),
        ({"speed": -0.1}, r"M.*got -0.1"),
        ({"speed": float("nan")}, "got nan"),
        ({"regime": "cubic"}, "regime must be one of fixed, linear.*got 'cubic'"),
        ({"over": 0}, "over must be"),
        ({"spread": 0.0}, "spread"),
        ({"scale": "row"}, "scale must be one of"),
        ({"delta0": "a"}, "got 'a'"),
    ],
)
def test_a_wrong_setting_is_refused_at_birth(settings, message):
    with pytest.raises(ValueError, match=message):
        Ternary(**settings)


@given(
    st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=30), st.floats(0.01, 1)
)
def test_weights_are_the_signs_of_latents_beyond_the_threshold(latents, delta):
    latent = torch.tensor(latents)
    transform = TernaryTransform(latent, threshold=delta)
    threshold = float(transform.threshold)
    wanted = [
        0.0 if abs(w) <= threshold else math.copysign(1.0, w) for w in latent.tolist()
    ]
    assert transform(latent).tolist() == wanted


def test_gradient_passes_inside_the_unit_interval_and_on_its_border_only():
    latent = torch.tensor(
        [-1.5, -1.0, -0.3, 0.0, 0.05, 0.9, 1.0, 1.01], requires_grad=True
    )
    TernaryTransform(latent.detach(), threshold=0.1).forward(latent).sum().backward()
    assert latent.grad.tolist() == [0, 1, 1, 1, 1, 1, 1, 0]


def test_step_clips_the_latents():
    model = nn.Linear(4, 4)
    nn.init.constant_(model.weight, 3.0)
    session = tersify.attach(model, Recipe(rules=[Rule(methods=[Ternary()])]))
    session.step()
    assert session.latents()["weight"].max() == 1.0


def test_zeros_grow_with_the_epoch_and_a_zeroed_weight_returns_when_its_gradient_asks():
    model = nn.Linear(64, 64, bias=False)
    nn.init.normal_(model.weight, std=0.3)
    recipe = Recipe(rules=[Rule(methods=[Ternary(regime="log", cap=1.0)])])
    session = tersify.attach(model, recipe, epochs=50, steps_per_epoch=1)
    sparsity = []
    for _ in range(50):
        session.step()
        sparsity.append(sparsity_percent(session.pack().compressed().values()))
    assert sparsity == sorted(sparsity)
    assert sparsity[-1] > sparsity[0] + 30

    zeroed = (model.weight == 0).nonzero()[0].tolist()
    optimizer = torch.optim.SGD(session.param_groups(), lr=0.5)
    for _ in range(4):
        optimizer.zero_grad()
        (-model.weight[zeroed[0], zeroed[1]]).backward()
        optimizer.step()
    assert model.weight[zeroed[0], zeroed[1]] == 1.0


def test_growth_ends_at_the_wanted_share_of_zeros_and_then_follows_the_latents():
    model = nn.Linear(100, 100, bias=False)
    method = Ternary(regime="log", speed=9.0, sparsity=0.8, spread=0.2)
    session = tersify.attach(
        model, Recipe(rules=[Rule(methods=[method])]), epochs=41, steps_per_epoch=1
    )
    fractions, thresholds = [], []
    for _ in range(40):
        session.step()
        fractions.append(session.pack().sparsity_percent())
        thresholds.append(session.status()["Δ"])
    assert fractions[0] < 50
    assert fractions[0] < fractions[1] <= max(fractions) == pytest.approx(80, abs=0.1)
    assert thresholds[0] == pytest.approx(0.1)
    with torch.no_grad():
        # far beyond 1: they are not clipped, and Δ goes along with them
        session.sites[0].latent.mul_(7.0)
    session.step()
    assert (
        session.pack().sparsity_percent() == pytest.approx(80, abs=0.1)
        or session.status()["Δ"] > 1
    )
    assert session.sites[0].latent.abs().max() > 1


def test_spread_gives_the_latents_the_asked_standard_deviation():
    model = nn.Linear(100, 100)
    session = tersify.attach(model, Recipe(rules=[Rule(methods=[Ternary(spread=0.2)])]))
    assert session.latents()["weight"].std() == pytest.approx(0.2, rel=1e-4)


@pytest.mark.parametrize("scale", ["tensor", "channel"])
def test_a_learned_scale_starts_at_the_size_of_the_weight_and_learns(scale):
    model = nn.Linear(100, 50, bias=False)
    size = model.weight.square().mean().sqrt().item()
    session = tersify.attach(
        model, Recipe(rules=[Rule(methods=[Ternary(spread=0.2, scale=scale)])])
    )
    assert model.weight.square().mean().sqrt().item() == pytest.approx(size, rel=0.05)
    groups = session.param_groups(weight_decay=0.1)
    assert [g["weight_decay"] for g in groups] == [0.1, 0.0]
    assert [g.get("fused") for g in groups] == [None, True]
    model(torch.randn(3, 100)).sum().backward()
    assert all(p.grad is not None for p in groups[1]["params"])
    shape = session.pack()["weight"].scale.shape
    assert shape == (() if scale == "tensor" else (50, 1))


@pytest.mark.parametrize(
    "kind", ["Adam", "AdamW", "SGD", "Adagrad", "RMSprop", "NAdam", "Adadelta"]
)
def test_any_optimizer_takes_the_groups_and_moves_the_scale(kind):
    model = nn.Linear(100, 50, bias=False)
    session = tersify.attach(
        model, Recipe(rules=[Rule(methods=[Ternary(spread=0.2, scale="tensor")])])
    )
    optimizer = getattr(torch.optim, kind)(
        session.param_groups(weight_decay=0.1), lr=0.1
    )
    (scale,) = optimizer.param_groups[1]["params"]
    before = scale.detach().clone()
    model(torch.randn(3, 100)).sum().backward()
    optimizer.step()
    assert not torch.equal(scale, before)


def test_a_weight_of_zeros_with_a_scale_can_learn():
    model = nn.Linear(4, 4, bias=False)
    nn.init.zeros_(model.weight)
    session = tersify.attach(
        model, Recipe(rules=[Rule(methods=[Ternary(scale="tensor")])])
    )
    model(torch.ones(1, 4)).sum().backward()
    assert session.sites[0].latent.grad.abs().sum() > 0


@given(
    threshold=st.floats(0.01, 0.99),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_prepared_patterns_are_exact_at_the_threshold_itself(threshold, dtype):
    edge = torch.tensor(threshold, dtype=dtype)
    above, below = (
        torch.nextafter(edge, torch.tensor(to, dtype=dtype)) for to in (2.0, 0.0)
    )
    latent = torch.stack(
        [edge, above, below, torch.ones_like(edge), torch.zeros_like(edge)]
    )
    model = nn.Linear(10, 1, bias=False, dtype=dtype)
    with torch.no_grad():
        model.weight.copy_(torch.cat([latent, -latent])[None])
    session = tersify.attach(
        model, Recipe(rules=[Rule(methods=[Ternary(delta0=threshold, cap=1.0)])])
    )
    session.step()
    assert model.weight[0].tolist() == [0, 1, 0, 1, 0, 0, -1, 0, -1, 0]


def test_a_latent_changed_after_the_step_is_looked_at_anew():
    model = nn.Linear(20, 30, bias=False)
    session = tersify.attach(model, Recipe(rules=[Rule(methods=[Ternary(spread=0.3)])]))
    session.step()
    before = model.weight.clone()
    with torch.no_grad():
        session.sites[0].latent.neg_()
    assert torch.equal(model.weight, -before)


def test_parts_of_a_network_may_run_and_learn_one_after_the_other_in_one_step():
    model = nn.ModuleDict({"first": nn.Linear(8, 8), "second": nn.Linear(8, 8)})
    session = tersify.attach(
        model, Recipe(rules=[Rule(weights="*.weight", methods=[Ternary(spread=0.3)])])
    )
    session.step()
    grads = {}
    for name, part in model.items():
        part(torch.ones(2, 8)).square().sum().backward()
        grads[name] = {
            site.name: site.latent.grad is not None for site in session.sites
        }
    assert grads["first"] == {"first.weight": True, "second.weight": False}
    assert all(grads["second"].values())


def test_functional_calls_work_after_a_step_and_give_the_same_gradients():
    model, x = nn.Linear(6, 4, bias=False), torch.randn(3, 6)
    session = tersify.attach(model, Recipe(rules=[Rule(methods=[Ternary(spread=0.3)])]))
    session.step()
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(values):
        return torch.func.functional_call(model, values, (x,)).square().sum()

    functional = torch.func.grad(loss)(parameters)
    model(x).square().sum().backward()
    assert torch.equal(
        functional["parametrizations.weight.original"], session.sites[0].latent.grad
    )


@pytest.mark.parametrize("scale", ["none", "tensor", "channel"])
def test_under_autocast_prepared_weights_come_in_its_type_and_give_the_same_training(
    scale,
):
    weights, types = [], []
    method = Ternary(spread=0.3, scale=scale)
    for prepared in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
        session = tersify.attach(
            model,
            Recipe(rules=[Rule(weights="*.weight", methods=[method])]),
            epochs=9,
        )
        optimizer = torch.optim.Adam(session.param_groups(), lr=0.02)
        x = torch.randn(32, 12)
        for _ in range(6):
            session.step()
            if not prepared:
                forget_prepared(model)
            with torch.autocast("cpu", torch.bfloat16):
                types.append(model[0].weight.dtype)
                loss = model(x).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        session.step()
        # without autocast the weight is what it was
        assert model(x).dtype == torch.float32
        weights.append([site.latent.detach().clone() for site in session.sites])
    assert types == [torch.float32, *[torch.bfloat16] * 5, *[torch.float32] * 6]
    for made, asked in zip(*weights, strict=True):
        assert torch.equal(made, asked)
