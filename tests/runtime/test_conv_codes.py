"""Convolutions with dense codes on int8 activations: exact sums of whole steps, on
every instruction set.
"""

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
from tersify.runtime.epilogue import Epilogue
from tersify.runtime.ops import ConvKernel, Window
from tersify.runtime.plan import Quant
from tersify.runtime.weights import Weight, WeightKind

extension = pytest.importorskip("tersify._runtime")
ISAS = extension.isas()
UNSIGNED, SIGNED = (
    Quant(scale=1 / 64, low=0, high=255),
    Quant(scale=1 / 64, low=-127, high=127),
)


def steps(quant, *shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    return (
        torch.randint(quant.low, quant.high + 1, shape, generator=g).float()
        * quant.scale
    )


def codes_plan(
    n,
    channels,
    rows,
    size,
    window=THREE,
    *,
    quant=UNSIGNED,
    zeros=0.3,
    weight=None,
    **more,
):
    quants = {"x": quant}
    plan = conv_plan(
        n,
        channels,
        rows,
        size,
        window,
        zeros=zeros,
        kernel=ConvKernel.CODES_I8,
        quants=quants,
        **more,
    )
    node = plan.nodes[0]
    weight = (node.op.weight if weight is None else weight).in_steps()
    return replace(plan, nodes=(replace(node, op=replace(node.op, weight=weight)),))


def levels_weight(shape, count, *, zeros=0.0, seed=0):
    """A table of `count` odd levels."""
    g = torch.Generator().manual_seed(seed)
    table = torch.randn(count, generator=g).sort().values
    values = table[torch.randint(0, count, shape, generator=g)] * (
        torch.rand(shape, generator=g) >= zeros
    )
    return Weight(kind=WeightKind.TABLE, values=values, table=table)


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
    assert_close(
        codes_plan(n, 9, 70, size, Window(*window), quant=quant),
        [steps(quant, n, 9, *size)],
        threads=2,
    )


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
        plan = codes_plan(n, channels, rows, size, window, quant=quant, zeros=zeros)
        assert_close(plan, [steps(quant, n, channels, *size)], threads=threads)


@pytest.mark.parametrize("act", ["relu", "gelu"])
def test_residual_and_the_whole_epilogue(isa, act):
    plan = codes_plan(3, 6, 10, (9, 9), residual=True, epilogue=some_epilogue(act, 10))
    assert_close(plan, [steps(UNSIGNED, 3, 6, 9, 9), torch.randn(3, 10, 9, 9)])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_sums_of_the_largest_numbers_do_not_overflow(isa, sign):
    plan = codes_plan(1, 1024, 8, (6, 6))
    weight_values(plan).fill_(sign)
    assert_close(plan, [torch.full((1, 1024, 6, 6), UNSIGNED.high * UNSIGNED.scale)])


def test_numbers_beyond_the_range_are_clamped(isa):
    assert_close(codes_plan(2, 4, 8, (6, 6)), [10 * torch.randn(2, 4, 6, 6).round()])


def test_every_layer_of_two_bits_in_a_network_with_residuals(isa):
    """The value that two layers read may be quantized for one and plain for the other."""
    one = codes_plan(2, 8, 8, (10, 10), epilogue=RELU).nodes[0]
    two = replace(one, name="z", inputs=("y", "x"))
    mid = Quant(scale=0.5, low=0, high=255)
    plan = plan_of(
        one, two, inputs={"x": (2, 8, 10, 10)}, quants={"x": UNSIGNED, "y": mid}
    )
    assert_close(plan, [steps(UNSIGNED, 2, 8, 10, 10) + 0.003], threads=2)


@pytest.mark.usefixtures("kernels_win")
def test_compile_takes_codes_where_zeros_are_few_and_says_so():
    few, many = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
    few.weight.data = few.weight.data.sign() * (torch.rand_like(few.weight) < 0.8)
    many.weight.data = many.weight.data.sign() * (torch.rand_like(many.weight) < 0.1)
    model = nn.Sequential(few, nn.ReLU(), many, nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    x = torch.randn(8, 3, 12, 12)
    fast = compile(model, x, precision="int8", threads=1)
    described = fast.plan.describe().splitlines()
    assert "dense codes" in described[0]
    assert "dense codes" not in described[1]
    assert "int8 activations" in described[1]
    with torch.no_grad():
        wanted = model(x)
    assert (fast(x) - wanted).abs().max() < 0.02 * wanted.abs().max()


@pytest.mark.parametrize("quant", [UNSIGNED, SIGNED])
@pytest.mark.parametrize(
    ("count", "zeros"), [(2, 0.4), (16, 0.0), (16, 0.3), (64, 0.2), (200, 0.0)]
)
@pytest.mark.parametrize(
    ("channels", "rows", "size"),
    [(16, 16, (8, 8)), (5, 70, (7, 9)), (64, 33, (4, 4)), (3, 129, (2, 17))],
)
def test_tables_of_any_number_of_levels(isa, quant, count, zeros, channels, rows, size):
    weight = levels_weight((rows, channels, 3, 3), count, zeros=zeros)
    plan = codes_plan(
        2, channels, rows, size, quant=quant, weight=weight, kind=WeightKind.TABLE
    )
    assert_close(plan, [steps(quant, 2, channels, *size)], threads=2)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_longest_windows_of_the_largest_levels_do_not_overflow(isa, sign):
    values = torch.full((2, 7000, 3, 3), sign)
    values[0, 0, 0, 0] = 0.37
    weight = Weight(
        kind=WeightKind.TABLE, values=values, table=torch.tensor(sorted([sign, 0.37]))
    )
    plan = codes_plan(
        1,
        7000,
        2,
        (3, 3),
        weight=weight,
        kind=WeightKind.TABLE,
        epilogue=Epilogue(scale=torch.full((1,), 1e-3, dtype=torch.float64)),
    )
    assert_close(plan, [torch.full((1, 7000, 3, 3), 255 * UNSIGNED.scale)])


def test_int8_runs_asymmetric_ternary_and_tables_of_sixteen_levels():
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)
    ).eval()
    g = torch.Generator().manual_seed(3)
    model[0].weight.data = torch.tensor([-0.7, 0.0, 1.0])[
        torch.randint(0, 3, (16, 3, 3, 3), generator=g)
    ]
    model[2].weight.data = levels_weight((16, 16, 3, 3), 16).values
    x = torch.rand(2, 3, 12, 12, generator=g)
    fast = compile(model, x, precision="int8")
    assert fast.plan.describe().count("dense codes, int8 activations") == 2
    with torch.no_grad():
        wanted = model(x)
    assert (fast(x) - wanted).abs().max() < 0.02 * wanted.abs().max()


def test_int8_says_in_one_sentence_that_it_changes_nothing():
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU()).eval()
    with pytest.warns(RuntimeWarning, match="changes nothing"):
        compile(model, torch.rand(1, 3, 8, 8), precision="int8")
