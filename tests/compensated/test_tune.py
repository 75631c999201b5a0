"""Distillation of scales, norms and codes: it loses less, and what is stored is what
runs.
"""

from __future__ import annotations

import copy

import pytest
import torch
from small_language_model import SmallModel, calibration, loss_of, text, trained

import tersify
from tersify.compensated import Compensation, compensate_
from tersify.compensated.tune import divergence


def lost(tmp_path, **settings) -> tuple[float, torch.nn.Module]:
    model = trained()
    packed = compensate_(model, Compensation(**settings), calibration=calibration(128))
    tersify.save(packed, tmp_path / "net.terse")
    loaded = tersify.load(tmp_path / "net.terse", into=SmallModel())
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name
    return loss_of(loaded) - loss_of(trained()), model


@pytest.mark.parametrize(
    "settings",
    [{"bits": 2.5}, {"code": "table", "bits": 2.0}, {"code": "ternary"}],
)
def test_tuned_scales_and_norms_lose_less_on_other_text(settings, tmp_path):
    before, _ = lost(tmp_path, **settings)
    after, model = lost(tmp_path, **settings, tune_steps=60, tune_rate=0.005)
    assert after < 0.9 * before
    assert not torch.equal(model.norm.weight, trained().norm.weight)


def test_tuned_codes_lose_less_than_tuned_scales(tmp_path):
    same = {"bits": 2.2, "tune_steps": 120, "tune_rate": 0.005}
    scales, _ = lost(tmp_path, **same)
    codes, _ = lost(tmp_path, **same, tune_codes=True)
    assert codes < 0.8 * scales


def test_tuning_without_steps_changes_nothing():
    models = [trained(), trained()]
    compensate_(models[0], Compensation(), calibration=calibration(16))
    compensate_(models[1], Compensation(tune_codes=True), calibration=calibration(16))
    for name, value in models[0].state_dict().items():
        assert torch.equal(value, models[1].state_dict()[name]), name


def test_batches_of_its_own_are_what_tuning_looks_at():
    looked_at = []

    def tuned_on(batches):
        model = trained()
        model.register_forward_pre_hook(lambda _, given: looked_at.append(given[0]))
        compensate_(
            model,
            Compensation(bits=2.5, tune_steps=4),
            calibration=calibration(16),
            tuning=batches,
        )
        return looked_at[-1]

    other = [(text(7, 3), None)]
    assert torch.equal(tuned_on(other), other[0][0])
    assert tuned_on(None).shape != other[0][0].shape


def test_the_tuned_network_is_as_trainable_as_it_was():
    model = trained().train()
    model.norm.weight.requires_grad_(False)
    compensate_(model, Compensation(tune_steps=2), calibration=calibration(16))
    assert model.training
    assert model.embed.weight.requires_grad
    assert not model.norm.weight.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.head.weight is model.embed.weight


def test_a_run_that_was_stopped_in_tuning_ends_the_same(tmp_path):
    settings = Compensation(bits=2.5, tune_steps=6, tune_codes=True)
    whole, model = trained(), trained()
    compensate_(whole, settings, calibration=calibration(32))

    def tell(what: str, done: int, all_of_it: int) -> None:
        if what == "tuning" and done == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        compensate_(
            model, settings, calibration=calibration(32), folder=tmp_path, tell=tell
        )
    compensate_(model, settings, calibration=calibration(32), folder=tmp_path)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


def test_divergence_is_the_mean_over_tokens():
    torch.manual_seed(0)
    found, wanted = torch.randn(2, 3000, 7), torch.randn(2, 3000, 7)
    p, q = wanted.softmax(-1), found.softmax(-1)
    by_hand = (p * (p.log() - q.log())).sum(-1).mean()
    assert float(divergence(found, wanted)) == pytest.approx(float(by_hand), rel=1e-5)
    assert float(divergence(wanted, wanted)) == pytest.approx(0.0, abs=1e-6)


def test_conv1d_of_transformers_is_tuned_in_its_own_orientation():
    pytorch_utils = pytest.importorskip("transformers.pytorch_utils")
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        pytorch_utils.Conv1D(30, 12), torch.nn.ReLU(), pytorch_utils.Conv1D(5, 30)
    )
    dense = copy.deepcopy(net)
    x = torch.randn(256, 12)
    batches = [(part, torch.randint(0, 5, (16,))) for part in x.split(16)]
    gaps = []
    for steps in (0, 100):
        tried = copy.deepcopy(dense)
        packed = compensate_(
            tried,
            Compensation(bits=2.0, tune_steps=steps, tune_codes=True, tune_rate=0.005),
            calibration=batches,
        )
        assert torch.equal(packed["0.weight"].to_dense(), tried[0].weight)
        with torch.no_grad():
            gaps.append(float(divergence(tried(x), dense(x))))
    assert gaps[1] < 0.5 * gaps[0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tune_steps": -1}, "tune_steps must be a whole number of at least 0"),
        ({"tune_rate": 0.0}, "tune_rate must be in"),
        ({"tune_codes": 1}, "tune_codes must be true or false, got 1"),
        ({"code": "table", "bits": 4.0, "tune_codes": True}, "for code steps"),
    ],
)
def test_settings_of_tuning_are_checked(settings, said):
    with pytest.raises(ValueError, match=said):
        Compensation(**settings)


def test_tuning_gives_the_same_network_each_time():
    models = [trained(), trained()]
    for model in models:
        compensate_(
            model,
            Compensation(bits=2.5, tune_steps=5, tune_codes=True),
            calibration=calibration(16),
        )
    ids = text(4, 9)
    assert torch.equal(models[0](ids), models[1](ids))
