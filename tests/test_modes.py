"""Networks that are looked at in eval mode get each module's own mode back."""

import pytest
import torch
from torch import nn

import tersify
from tersify import Recipe, Rule
from tersify.calibration import Calibration, input_norms, squared_gradients
from tersify.lab import dataset
from tersify.lab.trainer.evaluation import check_fits
from tersify.methods import Energy
from tersify.modes import eval_mode
from tersify.sites import find_sites


def partly_frozen():
    """In training, but for a batch norm whose statistics shall stay."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10)
    ).train()
    model[1].eval()
    return model


def batches():
    return [(torch.randn(2, 1, 8, 8), torch.tensor([0, 2]))]


def calibrate(model):
    squared_gradients(model, find_sites(model), Calibration(batches()))


def record_inputs(model):
    weights = [
        site for site in find_sites(model) if site.name in ("0.weight", "3.weight")
    ]
    input_norms(model, weights, Calibration(batches()))


def search(model):
    tersify.attach(
        model, Recipe(rules=[Rule(weights="0.weight", methods=[Energy()])]), steps=9
    ).step(*batches()[0])


def shrink(model):
    tersify.shrink(model, batches()[0][0])


def compile_(model):
    tersify.compile(model, batches()[0][0])


def collect(model):
    from tersify.sparse.input_rows import _eval_without_fast_path

    with _eval_without_fast_path(model):
        assert not any(module.training for module in model.modules())


def export(model):
    pytest.importorskip("onnx")
    from tersify.export.onnx_graph import _trace

    for folded in (False, True):
        _trace(model, batches()[0][0], folded=folded)


def evaluate(model):
    check_fits(model, dataset("digits"))


@pytest.mark.parametrize(
    "use",
    [calibrate, record_inputs, search, shrink, compile_, collect, export, evaluate],
)
def test_a_frozen_batch_norm_stays_frozen(use):
    model = partly_frozen()
    use(model)
    assert [module.training for module in model] == [True, False, True, True]
    assert model.training


def test_modes_come_back_after_an_error():
    model = partly_frozen()
    with pytest.raises(IndexError), eval_mode(model):
        model(torch.randn(1, 1, 8, 8))[1]
    assert [module.training for module in model.modules()] == [
        True,
        True,
        False,
        True,
        True,
    ]
