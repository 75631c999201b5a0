"""Magnitude pruning keeps its promises."""

import pytest
import torch
from torch import nn

import tersify
from tersify import Recipe, Rule
from tersify.methods import Prune, Ternary
from tersify.methods.pruning.choice import MOST_TOGETHER, choose_in_layers, lowest
from tersify.tensor import sparsity_percent


def test_pruned_share_reaches_the_target_at_the_end_of_the_ramp_and_stays():
    model = nn.Linear(100, 100)
    recipe = Recipe(rules=[Rule(methods=[Prune(sparsity=0.9, begin=0.1, end=0.5)])])
    session = tersify.attach(model, recipe, epochs=20, steps_per_epoch=1)
    fractions = []
    for _ in range(20):
        session.step()
        fractions.append(sparsity_percent(session.pack().compressed().values()))
    assert fractions[0] == 0
    assert fractions == sorted(fractions)
    assert fractions[10:] == [90.0] * 10


@pytest.mark.parametrize(("begin", "end", "steps"), [(0.7, 0.75, 10), (0.0, 1.0, 3)])
def test_a_ramp_shorter_than_a_step_and_one_to_the_very_end_are_not_missed(
    begin, end, steps
):
    recipe = Recipe(rules=[Rule(methods=[Prune(sparsity=0.9, begin=begin, end=end)])])
    session = tersify.attach(nn.Linear(50, 50), recipe, epochs=steps, steps_per_epoch=1)
    for _ in range(steps):
        session.step()
    assert session.pack().sparsity_percent() == pytest.approx(90)


def test_the_smallest_weights_go_and_one_returns_when_it_outgrows_others():
    model = nn.Linear(10, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.arange(1.0, 11.0))
    recipe = Recipe(rules=[Rule(methods=[Prune(sparsity=0.5, end=0.9)])])
    session = tersify.attach(model, recipe, epochs=100, steps_per_epoch=1)
    for _ in range(80):
        session.step()
    assert model.weight.flatten()[:4].tolist() == [0.0] * 4
    with torch.no_grad():
        model.parametrizations.weight.original[0, 0] = 50.0
    session.step()
    assert model.weight[0, 0] == 50.0


def test_masked_weights_stay_zero_through_fine_tuning():
    model = nn.Linear(20, 20)
    session = tersify.attach(
        model,
        Recipe(rules=[Rule(methods=[Prune(sparsity=0.8, end=0.1)])]),
        epochs=50,
        steps_per_epoch=1,
    )
    optimizer = torch.optim.SGD(session.param_groups(), lr=0.1, momentum=0.9)
    for _ in range(50):
        session.step()
        loss = model(torch.randn(8, 20)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (model.weight == 0).float().mean().item() == pytest.approx(0.8)


def test_what_the_pruner_zeroed_stays_zero_behind_a_quantizer():
    model = nn.Linear(30, 30)
    chain = [Prune(sparsity=0.7, end=0.1), Ternary(delta0=0.001, spread=0.2)]
    session = tersify.attach(
        model, Recipe(rules=[Rule(methods=chain)]), epochs=4, steps_per_epoch=1
    )
    for _ in range(4):
        session.step()
    mask = session.sites[0].chain[0].mask
    assert (session.pack()["weight"].codes[~mask] == 0).all()
    assert (session.pack()["weight"].codes[mask] != 0).float().mean() > 0.9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sparsity": 1.0}, r"sparsity must be in \[0, 1\), got 1.0"),
        ({"begin": 0.5, "end": 0.5}, "end must lie behind begin"),
        ({"begin": -0.1}, "begin"),
    ],
)
def test_a_wrong_setting_is_refused_at_birth(settings, message):
    with pytest.raises(ValueError, match=message):
        Prune(**settings)


def test_layers_of_one_size_are_chosen_together_as_they_would_be_alone():
    torch.manual_seed(0)
    sizes = [12, 12, 12, 7, 12, *[5] * (MOST_TOGETHER + 3)]
    # many ties, which the position decides
    layers = [torch.randint(4, (1, size)).float() for size in sizes]
    layers[2] = layers[2].double()
    together = list(choose_in_layers(layers, lambda units: units // 2))
    for scores, kept in zip(layers, together, strict=True):
        assert torch.equal(kept, ~lowest(scores, scores.numel() // 2))
