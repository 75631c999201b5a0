"""A threshold that outruns the latents of a weight waits for them, so that no layer falls
silent.
"""

import copy
import warnings

import pytest
import torch
from torch import nn

import tersify
from tersify import Recipe, Rule
from tersify.methods import Prune, Ternary, TernaryTarget
from tersify.methods.prepared_slots import forget_prepared
from tersify.tensor import sparsity_percent


def zeros_of_each(session) -> dict[str, float]:
    packed = session.pack().compressed()
    return {name: sparsity_percent([tensor]) for name, tensor in packed.items()}


@pytest.mark.parametrize("regime", ["fixed", "linear", "square", "exp", "log", "log10"])
def test_no_regime_with_its_defaults_leaves_less_than_a_tenth_of_a_weight(regime):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 7))
    session = tersify.attach(
        model,
        Recipe(rules=[Rule(methods=[Ternary(regime=regime)])]),
        epochs=9,
        steps_per_epoch=4,
    )
    for _ in range(36):
        session.step()
        assert all(zeros <= 90 for zeros in zeros_of_each(session).values())


def test_a_layer_of_small_latents_keeps_a_tenth_of_what_the_sparsity_leaves_others():
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100))
    with torch.no_grad():
        model[0].weight.mul_(1e-3)
    method = Ternary(regime="linear", speed=9.0, sparsity=0.8)
    session = tersify.attach(
        model,
        Recipe(rules=[Rule(methods=[method])]),
        epochs=9,
        steps_per_epoch=4,
    )
    for _ in range(36):
        session.step()
    assert zeros_of_each(session)["0.weight"] == pytest.approx(98, abs=0.1)


def test_with_a_floor_of_nothing_the_threshold_is_the_paper_s_own():
    model = nn.Linear(100, 100)
    method = Ternary(regime="linear", cap=0.9, floor=0.0)
    session = tersify.attach(
        model, Recipe(rules=[Rule(methods=[method])]), epochs=9, steps_per_epoch=1
    )
    with pytest.warns(UserWarning, match="'weight' became zero"):
        session.step()
    for _ in range(7):
        session.step()
    assert session.status()["Δ"] == pytest.approx(0.9)
    assert session.status()["zeros"] == 100.0


@pytest.mark.parametrize("floor", [-0.1, 1.0, float("nan"), "a"])
def test_a_floor_that_is_no_part_of_a_weight_is_refused(floor):
    with pytest.raises(ValueError, match=r"floor must be in \[0, 1\)"):
        Ternary(floor=floor)


def test_latents_of_one_size_do_not_all_become_zero_together():
    model = nn.Linear(20, 30, bias=False)
    nn.init.constant_(model.weight, -0.05)
    session = tersify.attach(model, Recipe(rules=[Rule(methods=[Ternary()])]))
    session.step()
    assert (model.weight == -1).all()


def test_what_a_pruner_took_is_not_counted_among_what_stays():
    model = nn.Linear(200, 100, bias=False)
    chain = [Prune(sparsity=0.95, schedule="one-shot"), Ternary()]
    session = tersify.attach(model, Recipe(rules=[Rule(methods=chain)]), steps=3)
    session.step()
    assert session.status()["zeros"] == pytest.approx(99.5, abs=0.05)


def test_weights_prepared_for_several_thresholds_are_those_of_each_transform():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 5)
    )
    with torch.no_grad():
        model[1].weight.mul_(0.3)
        model[3].weight.mul_(0.1)
    for scale in ("none", "tensor", "channel"):
        own = copy.deepcopy(model)
        session = tersify.attach(
            own, Recipe(rules=[Rule(methods=[Ternary(scale=scale)])])
        )
        session.step()
        prepared = [own[at].weight.detach().clone() for at in (0, 1, 3)]
        forget_prepared(own)
        for at, weight in zip((0, 1, 3), prepared, strict=True):
            assert torch.equal(own[at].weight, weight)
        thresholds = {float(site.chain[0].threshold) for site in session.sites}
        assert len(thresholds) == 3


def test_a_weight_that_became_all_zero_is_named_once_by_step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 30))
    with torch.no_grad():
        model[2].weight.mul_(1e-4)
    session = tersify.attach(
        model, Recipe(rules=[Rule(methods=[TernaryTarget(sparsity=0.6)])]), steps=40
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(40):
            session.step()
        session.pack()
    (only,) = told
    assert "every number of '2.weight' became zero" in str(only.message)
    assert only.filename == __file__


def test_pack_names_a_weight_that_became_all_zero():
    model = nn.Linear(30, 30)
    method = Ternary(delta0=0.9, floor=0.0)
    session = tersify.attach(model, Recipe(rules=[Rule(methods=[method])]))
    with pytest.warns(
        UserWarning, match="every number of 'weight' became zero"
    ) as told:
        session.pack()
    assert told[0].filename == __file__


def test_a_weight_that_begins_at_zero_is_no_news():
    model = nn.Linear(30, 30)
    nn.init.zeros_(model.weight)
    session = tersify.attach(model, Recipe(rules=[Rule(methods=[Ternary()])]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.step()
        assert session.pack().sparsity_percent() == 100


@pytest.mark.parametrize("regime", ["log", "linear", "exp"])
def test_a_default_regime_learns_on_a_network_of_its_own_initialisation(regime):
    torch.manual_seed(0)
    labels = torch.arange(300) % 3
    points = torch.randn(3, 20)[labels] + 0.7 * torch.randn(300, 20)
    model = nn.Sequential(
        nn.Linear(20, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 3)
    )
    recipe = Recipe(rules=[Rule(methods=[Ternary(regime=regime)])])
    session = tersify.attach(model, recipe, epochs=10, steps_per_epoch=6)
    optimizer = torch.optim.Adam(session.param_groups(), lr=5e-3)
    for _ in range(60):
        session.step()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points), labels).backward()
        optimizer.step()
    session.pack(calibration=[(points, labels)])
    assert (model.eval()(points).argmax(1) == labels).float().mean() > 0.95
