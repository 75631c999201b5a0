"""What precision="int8" takes, and what it must leave in floats."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tersify
from tersify.runtime import compile
from tersify.runtime.weights import WeightKind, classify

pytest.importorskip("tersify._runtime")


def apart(fast, model, x):
    with torch.no_grad():
        wanted = model(x)
    return float((fast(x) - wanted).abs().max() / wanted.abs().max())


def test_rows_of_whole_steps_are_recognised_without_their_file():
    steps = torch.rand(6) + 0.1
    whole = torch.randint(-127, 128, (6, 5, 3, 3)).float()
    found = classify("w", whole * steps.reshape(-1, 1, 1, 1))
    assert found.kind is WeightKind.TABLE
    assert found.is_whole
    made = found.values * found.row_scale.reshape(-1, 1, 1, 1)
    assert torch.allclose(made, whole * steps.reshape(-1, 1, 1, 1), rtol=1e-6)


def test_plain_numbers_and_rows_of_zeros_are_no_steps():
    assert classify("w", torch.randn(64, 300)).kind is WeightKind.FLOAT
    rows = torch.randint(-127, 128, (64, 300)).float() * torch.rand(64, 1)
    rows[5] = 0
    assert classify("w", rows).is_whole
    rows[7, 3] *= 1.01
    assert classify("w", rows).kind is WeightKind.FLOAT


def test_a_uniform_quantizer_of_channels_runs_in_int8(kernels_win):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.Flatten()
    )
    model.append(nn.Linear(8 * 8 * 8, 64)).eval()
    x = torch.rand(8, 3, 12, 12)
    tersify.compress_(model, "uniform-8")
    fast = compile(model, x, precision="int8", calibration=x)
    assert fast.plan.describe().count("int8 activations") == 3
    assert apart(fast, model, x) < 0.03


def test_levels_that_a_few_large_ones_would_drown_stay_in_floats(kernels_win):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(64, 32, 3), nn.ReLU(), nn.Conv1d(32, 8, 3)).eval()
    table = torch.tensor([-0.2, -0.1, -0.05, 0.05, 0.1, 0.2])
    weight = table[torch.randint(0, 6, model[0].weight.shape)]
    weight[0, 0] = 100.0
    model[0].weight.data = weight
    model[2].weight.data = table[torch.randint(0, 6, model[2].weight.shape)]
    x = torch.rand(4, 64, 20)
    fast = compile(model, x, precision="int8", calibration=x)
    assert fast.plan.describe().count("int8 activations") == 1
    assert apart(fast, model, x) < 0.03


def test_values_whose_faint_items_would_vanish_stay_in_floats(kernels_win):
    torch.manual_seed(0)
    model = nn.Conv1d(16, 32, 3).eval()
    model.weight.data = torch.randint(-7, 8, model.weight.shape).float() / 7
    model.bias.data.zero_()
    loudness = 10.0 ** -torch.arange(0, 8).float()
    x = torch.rand(8, 16, 20) * loudness.reshape(-1, 1, 1)
    with pytest.warns(RuntimeWarning, match="changes nothing"):
        fast = compile(model, x, precision="int8", calibration=x)
    assert "8 bits would lose the faint ones" in fast.plan.describe()
    with torch.no_grad():
        made, wanted = fast(x).flatten(1), model(x).flatten(1)
    assert ((made - wanted).norm(dim=1) <= 1e-4 * wanted.norm(dim=1)).all()
