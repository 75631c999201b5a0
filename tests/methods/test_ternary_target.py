"""The fraction of zeros is what was asked for."""

import math

import pytest
import torch
from torch import nn

import tersify
from method_zoo import recipe_of
from tersify.methods import TernaryTarget
from tersify.methods.layer_spreads import MOST_DENSE, layer_densities, layer_spreads
from tersify.methods.threshold import magnitude_quantile
from tersify.tensor import sparsity_percent


def test_the_network_as_a_whole_reaches_the_share_and_layers_differ():
    model = nn.Sequential(nn.Linear(60, 80), nn.Linear(80, 60))
    nn.init.normal_(model[0].weight, std=0.1)
    nn.init.normal_(model[1].weight, std=0.3)
    session = tersify.attach(
        model,
        recipe_of((TernaryTarget(sparsity=0.9, end=0.5),)),
        epochs=100,
        steps_per_epoch=1,
    )
    fractions = []
    for _ in range(100):
        session.step()
        fractions.append(session.pack().sparsity_percent())
    assert fractions[0] == pytest.approx(40, abs=0.1)
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(90, abs=0.1)
    first, second = (
        sparsity_percent([t]) for t in session.pack().compressed().values()
    )
    assert first > 95 > 87 > second


def test_latents_that_outgrow_one_do_not_empty_the_network():
    model = nn.Linear(50, 50)
    session = tersify.attach(
        model,
        recipe_of((TernaryTarget(sparsity=0.9, end=0.1),)),
        epochs=65,
        steps_per_epoch=1,
    )
    for _ in range(65):  # the last step is one that looks at the latents
        with torch.no_grad():
            session.sites[0].latent.mul_(1.2)
        session.step()
    assert session.pack().sparsity_percent() == pytest.approx(90, abs=0.1)


@pytest.mark.parametrize("steps", [3, 12, 24, 100])
def test_a_short_run_reaches_the_share_too(steps):
    session = tersify.attach(
        nn.Linear(50, 50),
        recipe_of((TernaryTarget(sparsity=0.9),)),
        epochs=steps,
        steps_per_epoch=1,
    )
    for _ in range(steps):
        session.step()
    assert session.pack().sparsity_percent() == pytest.approx(90, abs=0.2)


def test_compression_without_training_meets_the_share_at_once():
    model = nn.Linear(100, 100)
    assert tersify.compress_(
        model, recipe_of((TernaryTarget(sparsity=0.8),))
    ).sparsity_percent() == pytest.approx(80)


def test_quantile_of_a_large_network_comes_from_a_sample_and_is_close():
    latents = [torch.randn(1 << 20), torch.randn(3 << 20)]
    exact = torch.cat(latents).abs().kthvalue(round(0.9 * (4 << 20))).values
    assert magnitude_quantile(latents, 0.9) == pytest.approx(exact.item(), rel=5e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sparsity": 1.0}, r"sparsity must be in \(0, 1\), got 1.0"),
        ({"start": 0.0}, r"start must be in \(0, 1\)"),
        ({"begin": 0.7, "end": 0.7}, "end must lie behind begin"),
        ({"scale": "x"}, "scale must be one of"),
    ],
)
def test_a_wrong_setting_is_refused_at_birth(settings, message):
    with pytest.raises(ValueError, match=message):
        TernaryTarget(**settings)


def test_the_share_is_measured_before_the_last_step_whatever_its_number():
    steps = 830  # measured every 16 steps, and the last is none of them
    session = tersify.attach(
        nn.Linear(20, 20),
        recipe_of((TernaryTarget(sparsity=0.9, end=0.1),)),
        steps=steps,
    )
    for step in range(steps):
        if step == steps - 1:
            with torch.no_grad():
                session.sites[0].latent.mul_(1.5)
        session.step()
    assert session.pack().sparsity_percent() == pytest.approx(90, abs=0.3)


@pytest.mark.parametrize(
    ("steps", "spread"), [(10, 0.048), (100, 0.048), (400, 0.08), (5000, 0.2)]
)
def test_in_a_short_run_the_latents_begin_closer_together(steps, spread):
    model = nn.Linear(100, 100, bias=False)
    session = tersify.attach(
        model, recipe_of((TernaryTarget(spread=0.2, scale="tensor"),)), steps=steps
    )
    session.step()
    assert session.sites[0].latent.std(correction=0).item() == pytest.approx(
        spread, rel=1e-4
    )
    assert session.pack().sparsity_percent() == pytest.approx(
        60 if steps < 1000 else 40, abs=0.1
    )
    session.step()
    assert session.sites[0].latent.std(correction=0).item() == pytest.approx(
        spread, rel=1e-4
    )


@pytest.mark.parametrize("scale", ["tensor", "channel"])
@pytest.mark.parametrize("steps", [24, 400])
def test_a_weight_keeps_its_size_while_zeros_come(steps, scale):
    model = nn.Linear(100, 100, bias=False)
    before = model.weight.detach().square().mean().sqrt().item()
    session = tersify.attach(
        model, recipe_of((TernaryTarget(spread=0.2, scale=scale),)), steps=steps
    )
    sizes = []
    for _ in range(steps):
        session.step()
        sizes.append(model.weight.detach().square().mean().sqrt().item())
    assert session.pack().sparsity_percent() == pytest.approx(90, abs=0.1)
    assert sizes == pytest.approx([before] * steps, rel=1e-3)


def test_the_scale_of_a_weight_with_hardly_a_survivor_stays_finite():
    model = nn.Sequential(nn.Linear(40, 40, bias=False), nn.Linear(40, 400, bias=False))
    nn.init.zeros_(model[0].weight)
    model[0].weight.data[0, 0] = 1.0
    session = tersify.attach(
        model, recipe_of((TernaryTarget(spread=0.2, scale="tensor"),)), steps=24
    )
    for _ in range(24):
        session.step()
    assert model[0].weight.detach().ne(0).sum() == 1
    assert 0 < session.sites[0].chain[0].factor().item() < 1


def test_small_layers_keep_more_of_their_weights_and_the_whole_meets_the_share():
    model = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 10))
    for layer in model:
        nn.init.normal_(layer.weight)
    session = tersify.attach(
        model, recipe_of((TernaryTarget(sparsity=0.9, spread=0.2),)), steps=30
    )
    for _ in range(30):
        session.step()
    packed = session.pack()
    assert packed.sparsity_percent() == pytest.approx(90, abs=0.1)
    first, second, last = (
        100 - sparsity_percent([t]) for t in packed.compressed().values()
    )
    assert last == pytest.approx(47.5, abs=4)
    assert second < first < 15


def test_densities_of_layers_sum_to_the_whole_and_stay_below_the_most():
    shapes = [(32, 1, 3, 3), (64, 32, 3, 3), (128, 256), (10, 128), (7,)]
    sizes = [288, 18432, 32768, 1280, 7]
    for density in (0.01, 0.1, 0.5, 0.9):
        found = layer_densities(shapes, density)
        assert sum(d * n for d, n in zip(found, sizes, strict=True)) == pytest.approx(
            density * sum(sizes)
        )
        assert 0 < min(found) <= max(found) <= max(MOST_DENSE, density) + 1e-9
    assert layer_spreads([(30, 40)], 0.9) == pytest.approx([1.0])
    assert all(math.isfinite(spread) for spread in layer_spreads(shapes, 1e-17))
