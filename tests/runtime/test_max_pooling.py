"""A convolution that ends in the maxima of windows side by side: one operation wherever
its layout allows.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_plans import (
    KINDS,
    ONE,
    RELU,
    TOLERANCE,
    conv_plan,
    in_int8,
    network_of,
    run,
    running_on,
    weight_values,
)
from torch import nn

from tersify.runtime import compile, run_reference
from tersify.runtime.op_profile import profile
from tersify.runtime.ops import Window

extension = pytest.importorskip("tersify._runtime")


def pooled_plan(n, channels, rows, size, pool, **more):
    shift = torch.sin(torch.arange(rows, dtype=torch.float64))
    return conv_plan(
        n,
        channels,
        rows,
        size,
        pool=pool,
        epilogue=replace(RELU, shift=shift),
        zeros=0.7,
        **more,
    )


@given(
    n=st.integers(1, 40),
    channels=st.integers(1, 12),
    rows=st.integers(1, 20),
    size=st.tuples(st.integers(4, 19), st.integers(4, 19)),
    pool=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.integers(1, 2),
    kind=st.sampled_from(KINDS),
    residual=st.booleans(),
    int8=st.booleans(),
    isa=st.sampled_from(extension.isas()),
    threads=st.integers(1, 3),
)
@settings(max_examples=80, deadline=None)
def test_any_shape(
    n, channels, rows, size, pool, stride, kind, residual, int8, isa, threads
):
    window = Window(3, 3, stride, stride, 1, 1)
    plan = pooled_plan(
        n, channels, rows, size, pool, window=window, kind=kind, residual=residual
    )
    if min(plan.nodes[0].shape) < 1:
        return
    g = torch.Generator().manual_seed(n)
    inputs = [torch.rand(value.shape, generator=g) for value in plan.inputs.values()]
    if int8:
        plan = in_int8(plan, inputs)
    exact = run_reference(plan, [x.double() for x in inputs])[0]
    with running_on(isa):
        error = (run(plan, inputs, threads)[0].double() - exact).abs()
    if "y" in plan.quants:  # up to one step, where a sum lies between two
        assert error.max() <= 1.01 * plan.quants["y"].scale
        assert (error > 0.01 * plan.quants["y"].scale).double().mean() < 0.02
    else:
        assert error.max() <= TOLERANCE * max(1.0, float(exact.abs().max()))


def test_two_bits_a_weight_pool_afterwards(isa):
    x = torch.randint(0, 256, (3, 4, 16, 16)) / 255
    x[0, 0, 0, 0] = 1.0
    plan = in_int8(pooled_plan(3, 4, 8, (16, 16), (2, 2)), [x], codes=True)
    exact = run_reference(plan, [x.double()])[0]
    assert (run(plan, [x])[0] - exact).abs().max() <= TOLERANCE * exact.abs().max()


def test_the_pool_is_part_of_the_convolution_s_own_step():
    network = network_of(pooled_plan(1, 4, 8, (32, 32), (2, 2)))
    times = profile(network, [torch.rand(1, 4, 32, 32)], repeats=1)
    assert [time.kernel for time in times] == ["to lanes + sparse signs + from lanes"]


def test_a_layout_whose_patches_cut_the_windows_pools_afterwards():
    network = network_of(pooled_plan(1, 4, 8, (33, 33), (3, 3)))
    kernel = profile(network, [torch.rand(1, 4, 33, 33)], repeats=1)[0].kernel
    assert "sparse signs" in kernel
    assert kernel.endswith("+ pool")


def test_nan_is_the_largest_of_all():
    plan = pooled_plan(1, 1, 1, (8, 8), (2, 2), window=ONE)
    weight_values(plan).fill_(1.0)
    x = torch.rand(1, 1, 8, 8)
    x[0, 0, 3, 3] = float("nan")
    assert run(plan, [x])[0].isnan().nonzero().tolist() == [[0, 0, 1, 1]]


@pytest.mark.usefixtures("kernels_win")
def test_only_pools_whose_windows_lie_side_by_side_are_folded_and_the_plan_says_so():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
    ).eval()
    x = torch.randn(3, 3, 24, 24)
    fast = compile(model, x, threads=1)
    assert [node.kind for node in fast.plan.nodes] == [
        "conv",
        "conv",
        "max pool",
        "conv",
        "average pool",
    ]
    assert "relu; max pool 2×2" in fast.plan.describe().splitlines()[0]
    with torch.no_grad():
        wanted = model(x)
    assert torch.allclose(fast(x), wanted, atol=1e-5)
    assert torch.allclose(run_reference(fast.plan, [x])[0], wanted, atol=1e-5)
