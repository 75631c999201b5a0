"""Convolutions of two bits a weight on int8 activations: exact sums of whole steps, on every instruction set."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_plans import (
    RELU,
    THREE,
    WINDOWS,
    assert_close,
    conv_plan,
    conv_shape,
    plan_of,
    running_on,
    some_epilogue,
    weight_values,
)
from torch import nn

from tersify.runtime import compile
from tersify.runtime.ops import ConvKernel, Window
from tersify.runtime.plan import Quant

extension = pytest.importorskip("tersify._runtime")
ISAS = extension.isas()
UNSIGNED, SIGNED = Quant(scale=1 / 64, low=0, high=255), Quant(scale=1 / 64, low=-127, high=127)


def steps(quant, *shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(quant.low, quant.high + 1, shape, generator=g).float() * quant.scale


def two_bit_plan(n, channels, rows, size, window=THREE, *, quant=UNSIGNED, zeros=0.3, **more):
    quants = {"x": quant}
    return conv_plan(
        n, channels, rows, size, window, zeros=zeros, kernel=ConvKernel.TWO_BIT_I8, quants=quants, **more
    )  # fmt: skip


@pytest.mark.parametrize("quant", [UNSIGNED, SIGNED])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("size", "window"),
    [
        ((16, 16), THREE),
        ((7, 5), THREE),
        ((33, 17), (3, 3, 2, 2, 1, 1, 1, 1)),
        ((15, 15), (1, 1, 2, 2, 0, 0, 1, 1)),
        ((12, 20), (5, 3, 1, 2, 2, 1, 1, 1)),
        ((20, 20), (3, 3, 1, 1, 2, 2, 2, 2)),
        ((1, 40), (1, 5, 1, 2, 0, 2, 1, 1)),
        ((1, 1), THREE),
        ((8, 8), (8, 8, 1, 1, 0, 0, 1, 1)),
    ],
)
def test_sizes_strides_dilations_and_paddings(isa, quant, n, size, window):
    assert_close(two_bit_plan(n, 9, 70, size, Window(*window), quant=quant), [steps(quant, n, 9, *size)], threads=2)


@given(
    n=st.integers(1, 4),
    channels=st.integers(1, 20),
    rows=st.integers(1, 140),
    size=st.tuples(st.integers(1, 21), st.integers(1, 21)),
    window=WINDOWS,
    zeros=st.sampled_from([0.0, 0.5, 1.0]),
    quant=st.sampled_from([UNSIGNED, SIGNED]),
    isa=st.sampled_from(ISAS),
    threads=st.integers(1, 3),
)
@settings(max_examples=80, deadline=None)
def test_any_shape(n, channels, rows, size, window, zeros, quant, isa, threads):
    if min(conv_shape(rows, size, window)) < 1:
        return
    with running_on(isa):
        plan = two_bit_plan(n, channels, rows, size, window, quant=quant, zeros=zeros)
        assert_close(plan, [steps(quant, n, channels, *size)], threads=threads)


@pytest.mark.parametrize("act", ["relu", "gelu"])
def test_residual_and_the_whole_epilogue(isa, act):
    plan = two_bit_plan(3, 6, 10, (9, 9), residual=True, epilogue=some_epilogue(act, 10))
    assert_close(plan, [steps(UNSIGNED, 3, 6, 9, 9), torch.randn(3, 10, 9, 9)])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_sums_of_the_largest_numbers_do_not_overflow(isa, sign):
    plan = two_bit_plan(1, 1024, 8, (6, 6))
    weight_values(plan).fill_(sign)
    assert_close(plan, [torch.full((1, 1024, 6, 6), UNSIGNED.high * UNSIGNED.scale)])


def test_numbers_beyond_the_range_are_clamped(isa):
    assert_close(two_bit_plan(2, 4, 8, (6, 6)), [10 * torch.randn(2, 4, 6, 6).round()])


def test_every_layer_of_two_bits_in_a_network_with_residuals(isa):
    """The value that two layers read may be quantized for one and plain for the other."""
    one = two_bit_plan(2, 8, 8, (10, 10), epilogue=RELU).nodes[0]
    two = replace(one, name="z", inputs=("y", "x"))
    mid = Quant(scale=0.5, low=0, high=255)
    plan = plan_of(one, two, inputs={"x": (2, 8, 10, 10)}, quants={"x": UNSIGNED, "y": mid})
    assert_close(plan, [steps(UNSIGNED, 2, 8, 10, 10) + 0.003], threads=2)


@pytest.mark.usefixtures("kernels_win")
def test_compile_takes_two_bits_where_zeros_are_few_and_says_so():
    few, many = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
    few.weight.data = few.weight.data.sign() * (torch.rand_like(few.weight) < 0.8)
    many.weight.data = many.weight.data.sign() * (torch.rand_like(many.weight) < 0.1)
    model = nn.Sequential(few, nn.ReLU(), many, nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    x = torch.randn(8, 3, 12, 12)
    fast = compile(model, x, precision="int8", threads=1)
    described = fast.plan.describe().splitlines()
    assert "two bits a weight" in described[0]
    assert "two bits a weight" not in described[1]
    assert "int8 activations" in described[1]
    with torch.no_grad():
        wanted = model(x)
    assert (fast(x) - wanted).abs().max() < 0.02 * wanted.abs().max()
