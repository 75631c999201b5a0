"""Convolutions on int8 activations do exactly the arithmetic of the quantized
reference.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_plans import (
    THREE,
    conv_plan,
    conv_shape,
    in_int8,
    run,
    running_on,
    weight_values,
)
from torch import nn

from tersify.runtime import compile, run_reference
from tersify.runtime.epilogue import Epilogue
from tersify.runtime.ops import Window

extension = pytest.importorskip("tersify._runtime")
ISAS = extension.isas()


def int8_plan(inputs, rows, window=THREE, *, zeros=0.9, groups=1, low=0.0, **more):
    n, channels, *size = inputs[0].shape
    shift = 2 * torch.sin(torch.arange(rows, dtype=torch.float64) + 0.3)
    plan = conv_plan(
        n,
        channels,
        rows,
        tuple(size),
        window,
        zeros=zeros,
        groups=groups,
        residual=len(inputs) > 1,
        epilogue=Epilogue(shift=shift, low=low, **more),
    )
    return in_int8(plan, inputs)


def check(plan, inputs, threads=1):
    """Equal up to one step of the output where a sum lies between two steps."""
    wanted = run_reference(plan, [x.double() for x in inputs])[0]
    steps = (run(plan, inputs, threads)[0].double() - wanted).abs() / plan.quants[
        "y"
    ].scale
    assert steps.max() <= 1.01
    assert (steps > 0.01).double().mean() < 0.01


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("n", [1, 3, 32])
def test_signed_and_unsigned_activations(isa, signed, n):
    g = torch.Generator().manual_seed(n)
    x = (
        torch.randn(n, 20, 16, 16, generator=g)
        if signed
        else torch.rand(n, 20, 16, 16, generator=g)
    )
    plan = int8_plan([x], 24, low=-math.inf if signed else 0.0)
    assert plan.quants["x"].low == (-127 if signed else 0)
    check(plan, [x])


@pytest.mark.parametrize("groups", [2, 4, 12])
def test_grouped_and_depthwise_convolutions(isa, groups):
    x = torch.rand(3, 12, 9, 9, generator=torch.Generator().manual_seed(0))
    check(int8_plan([x], 24, zeros=0.3, groups=groups), [x])


def test_sums_that_would_overflow_16_bits_are_moved_in_time(isa):
    """All weights +1 and all activations at their largest: 96 · 9 · 255 is far beyond
    16 bits.
    """
    x = torch.ones(2, 96, 6, 6)
    plan = conv_plan(2, 96, 20, (6, 6), zeros=0.0, epilogue=Epilogue(low=0.0))
    weight_values(plan).fill_(1.0)
    check(in_int8(plan, [x]), [x])


def test_residuals_have_a_scale_of_their_own(isa):
    g = torch.Generator().manual_seed(0)
    inputs = [
        torch.rand(3, 8, 9, 9, generator=g),
        5 * torch.randn(3, 12, 9, 9, generator=g),
    ]
    check(int8_plan(inputs, 12), inputs)


@pytest.mark.parametrize("part", ["scale2", "shift2"])
def test_half_of_the_second_affine_map_is_not_forgotten(isa, part):
    g = torch.Generator().manual_seed(0)
    inputs = [
        torch.rand(3, 8, 9, 9, generator=g),
        torch.randn(3, 12, 9, 9, generator=g),
    ]
    check(
        int8_plan(inputs, 12, **{part: torch.full((1,), 2.0, dtype=torch.float64)}),
        inputs,
    )


@given(
    n=st.integers(1, 40),
    channels=st.integers(1, 30),
    rows=st.integers(1, 20),
    size=st.tuples(st.integers(1, 17), st.integers(1, 17)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    zeros=st.sampled_from([0.0, 0.7, 1.0]),
    isa=st.sampled_from(ISAS),
    threads=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_any_shape(
    n, channels, rows, size, kernel, stride, padding, zeros, isa, threads
):
    window = Window(*kernel, *stride, *padding)
    if min(conv_shape(rows, size, window)) < 1:
        return
    x = torch.rand(n, channels, *size, generator=torch.Generator().manual_seed(n))
    with running_on(isa):
        check(int8_plan([x], rows, window, zeros=zeros), [x], threads)


def close(fast, model, x) -> bool:
    with torch.no_grad():
        wanted = model(x)
    return bool((fast(x) - wanted).abs().max() < 0.02 * wanted.abs().max())


def ternary_conv(channels, rows, density=0.3):
    layer = nn.Conv2d(channels, rows, 3, padding=1)
    layer.weight.data = layer.weight.data.sign() * (
        torch.rand_like(layer.weight) < density
    )
    return layer


@pytest.mark.usefixtures("kernels_win")
def test_only_ternary_convolutions_run_on_int8_and_the_plan_says_so():
    plain = nn.Conv2d(8, 8, 3, padding=1)
    model = nn.Sequential(
        ternary_conv(3, 8),
        nn.ReLU(),
        plain,
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ).eval()
    x = torch.randn(8, 3, 12, 12)
    fast = compile(model, x, precision="int8", threads=1)
    described = fast.plan.describe().splitlines()
    assert "int8 activations" in described[0]
    assert "int8 activations" not in described[1]
    assert close(fast, model, x)


@pytest.mark.usefixtures("kernels_win")
def test_a_plain_convolution_before_a_ternary_one_keeps_its_weights():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), ternary_conv(8, 8)
    ).eval()
    x = torch.randn(4, 3, 12, 12)
    fast = compile(model, x, precision="int8", threads=1)
    described = fast.plan.describe().splitlines()
    assert "int8 activations" not in described[0]
    assert "int8 activations" in described[1]
    assert close(fast, model, x)


@pytest.mark.parametrize("as_list", [True, False])
def test_calibration_batches_set_the_ranges(as_list):
    layer = nn.Conv2d(3, 8, 3)
    layer.weight.data = layer.weight.data.sign()
    wide = 10 * torch.ones(2, 3, 8, 8)
    fast = compile(
        layer,
        torch.rand(2, 3, 8, 8),
        precision="int8",
        calibration=[wide] if as_list else wide,
    )
    assert fast.plan.quants["input"].scale == pytest.approx(10 / 255)


def test_the_ranges_of_the_calibration_hold_for_every_size():
    layer = ternary_conv(3, 8)
    fast = compile(
        layer,
        torch.rand(2, 3, 8, 8),
        precision="int8",
        calibration=torch.rand(9, 3, 12, 12),
        threads=1,
    )
    for shape in ((5, 3, 8, 8), (1, 3, 20, 9)):
        assert close(fast, layer, torch.rand(shape))
