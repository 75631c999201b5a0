"""A convolution that ends in the maxima of windows side by side: one operation wherever its layout allows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_plans import TOLERANCE, compiled, conv_shape, plan_of, random_weight, relu, running_on
from torch import nn

from tersify.runtime import compile, run_reference
from tersify.runtime.plan import Node, Plan, Pooled
from tersify.runtime.quantize import quantize

extension = pytest.importorskip("tersify._runtime")
THREE = (3, 3, 1, 1, 1, 1, 1, 1)


def maxima_plan(channels, rows, size, window, pool, *, kind="sign", residual=False) -> Plan:
    before = conv_shape(rows, size, window)
    node = Node(
        name="y",
        kind="conv",
        inputs=("x",),
        shape=(rows, before[1] // pool[0], before[2] // pool[1]),
        weight=random_weight((rows, channels, window[0], window[1]), kind, 0.7),
        finish=replace(relu(), shift=torch.sin(torch.arange(rows, dtype=torch.float64))),
        residual="r" if residual else None,
        options={"window": window, "groups": 1},
        pooled=Pooled(before=before, window=(*pool, *pool, 0, 0, 1, 1)),
    )
    return plan_of(node, inputs={"x": (channels, *size)} | ({"r": before} if residual else {}))


@given(
    n=st.integers(1, 40),
    channels=st.integers(1, 12),
    rows=st.integers(1, 20),
    height=st.integers(4, 19),
    width=st.integers(4, 19),
    pool=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.integers(1, 2),
    kind=st.sampled_from(["sign", "table", "float"]),
    residual=st.booleans(),
    int8=st.booleans(),
    isa=st.sampled_from(extension.isas()),
    threads=st.integers(1, 3),
)
@settings(max_examples=80)
def test_any_shape(n, channels, rows, height, width, pool, stride, kind, residual, int8, isa, threads):
    window = (3, 3, stride, stride, 1, 1, 1, 1)
    plan = maxima_plan(channels, rows, (height, width), window, pool, kind=kind, residual=residual)
    if min(plan.nodes[0].shape) < 1:
        return
    g = torch.Generator().manual_seed(n)
    inputs = [torch.rand(n, *i.shape, generator=g) for i in plan.inputs]
    if int8:
        plan = quantize(plan, [tuple(inputs)])
    exact = run_reference(plan, [x.double() for x in inputs])[0]
    with running_on(isa):
        error = (compiled(plan, threads)(*inputs)[0].double() - exact).abs()
    if "y" in plan.quants:  # up to one step, where a sum lies between two
        assert error.max() <= 1.01 * plan.quants["y"].scale
        assert (error > 0.01 * plan.quants["y"].scale).double().mean() < 0.02
    else:
        assert error.max() <= TOLERANCE * max(1.0, float(exact.abs().max()))


def test_the_dense_kernel_for_two_bits_a_weight_pools_afterwards():
    plan = maxima_plan(4, 8, (16, 16), THREE, (2, 2))
    node = replace(plan.nodes[0], options={**plan.nodes[0].options, "two_bit": True})
    x = torch.randint(0, 256, (3, 4, 16, 16)) / 255
    x[0, 0, 0, 0] = 1.0
    plan = quantize(replace(plan, nodes=(node,)), [(x,)])
    exact = run_reference(plan, [x.double()])[0]
    assert (compiled(plan)(x)[0] - exact).abs().max() <= TOLERANCE * exact.abs().max()


def test_the_pool_is_part_of_the_convolution_s_own_step():
    plan = maxima_plan(4, 8, (32, 32), THREE, (2, 2))
    times = compiled(plan).profile(torch.rand(1, 4, 32, 32), repeats=1)
    assert [time.kernel for time in times] == ["to lanes + sparse signs + from lanes"]


def test_a_layout_whose_patches_cut_the_windows_pools_afterwards():
    plan = maxima_plan(4, 8, (33, 33), THREE, (3, 3))
    times = compiled(plan).profile(torch.rand(1, 4, 33, 33), repeats=1)
    assert "sparse signs" in times[0].kernel
    assert "pool" in times[0].kernel


def test_nan_is_the_largest_of_all():
    plan = maxima_plan(1, 1, (8, 8), (1, 1, 1, 1, 0, 0, 1, 1), (2, 2))
    plan.nodes[0].weight.values.fill_(1.0)
    x = torch.rand(1, 1, 8, 8)
    x[0, 0, 3, 3] = float("nan")
    assert compiled(plan)(x)[0].isnan().nonzero().tolist() == [[0, 0, 1, 1]]


def test_only_pools_whose_windows_lie_side_by_side_are_folded_and_the_plan_says_so():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, stride=2),
        nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2),
    ).eval()  # fmt: skip
    x = torch.randn(3, 3, 24, 24)
    fast = compile(model, x, threads=1)
    assert [node.kind for node in fast.plan.nodes] == ["conv", "conv", "pool", "conv", "pool"]
    assert "relu; maxima of 2×2" in fast.plan.describe().splitlines()[0]
    with torch.no_grad():
        wanted = model(x)
    assert torch.allclose(fast(x), wanted, atol=1e-5)
    assert torch.allclose(run_reference(fast.plan, [x])[0], wanted, atol=1e-5)
