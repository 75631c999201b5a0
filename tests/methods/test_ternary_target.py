"""The share of zeros is what was asked for."""

import pytest
import torch
from torch import nn

import tersify
from tersify.methods import TernaryTarget
from tersify.methods.threshold import magnitude_quantile
from tersify.tensor import sparsity_percent
from zoo import recipe_of


def test_the_network_as_a_whole_reaches_the_share_and_layers_differ():
    model = nn.Sequential(nn.Linear(60, 80), nn.Linear(80, 60))
    nn.init.normal_(model[0].weight, std=0.1)
    nn.init.normal_(model[1].weight, std=0.3)
    session = tersify.attach(model, recipe_of((TernaryTarget(sparsity=0.9, end=0.5),)), epochs=100, steps_per_epoch=1)
    shares = []
    for _ in range(100):
        session.step()
        shares.append(session.pack().sparsity_percent())
    assert shares[0] == pytest.approx(40, abs=0.1)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(90, abs=0.1)
    first, second = (sparsity_percent([t]) for t in session.pack().compressed().values())
    assert first > 95 > 87 > second


def test_latents_that_outgrow_one_do_not_empty_the_network():
    model = nn.Linear(50, 50)
    session = tersify.attach(model, recipe_of((TernaryTarget(sparsity=0.9, end=0.1),)), epochs=65, steps_per_epoch=1)
    for _ in range(65):  # the last step is one that looks at the latents
        with torch.no_grad():
            session.sites[0].latent.mul_(1.2)
        session.step()
    assert session.pack().sparsity_percent() == pytest.approx(90, abs=0.1)


@pytest.mark.parametrize("steps", [3, 12, 24, 100])
def test_a_short_run_reaches_the_share_too(steps):
    session = tersify.attach(
        nn.Linear(50, 50), recipe_of((TernaryTarget(sparsity=0.9),)), epochs=steps, steps_per_epoch=1
    )
    for _ in range(steps):
        session.step()
    assert session.pack().sparsity_percent() == pytest.approx(90, abs=0.2)


def test_compression_without_training_meets_the_share_at_once():
    model = nn.Linear(100, 100)
    assert tersify.compress_(model, recipe_of((TernaryTarget(sparsity=0.8),))).sparsity_percent() == pytest.approx(80)


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
    session = tersify.attach(nn.Linear(20, 20), recipe_of((TernaryTarget(sparsity=0.9, end=0.1),)), steps=steps)
    for step in range(steps):
        if step == steps - 1:
            with torch.no_grad():
                session.sites[0].latent.mul_(1.5)
        session.step()
    assert session.pack().sparsity_percent() == pytest.approx(90, abs=0.3)


@pytest.mark.parametrize(("steps", "spread"), [(10, 0.01), (100, 0.02), (5000, 0.2)])
def test_in_a_short_run_the_latents_begin_closer_together(steps, spread):
    model = nn.Linear(100, 100, bias=False)
    session = tersify.attach(model, recipe_of((TernaryTarget(spread=0.2, scale="tensor"),)), steps=steps)
    before = model.weight.detach().clone()
    session.step()
    session.step()
    assert session.sites[0].latent.std(correction=0).item() == pytest.approx(spread, rel=1e-4)
    assert model.weight.detach().abs().max() == before.abs().max()  # the levels are not the latents' size
