"""A convolution that ends in the mean over its positions: one operation, whose numbers
never reach memory.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_plans import (
    KINDS,
    RELU,
    assert_close,
    conv_plan,
    in_int8,
    run,
    running_on,
    weight_values,
)
from torch import nn

from tersify.runtime import compile, run_reference
from tersify.runtime.epilogue import Epilogue
from tersify.runtime.ops import Window
from tersify.runtime.weights import WeightKind

extension = pytest.importorskip("tersify._runtime")


def mean_plan(n, channels, rows, size, *, mean=None, **more):
    shift = torch.sin(torch.arange(rows, dtype=torch.float64))
    epilogue = replace(RELU, shift=shift)
    return conv_plan(
        n,
        channels,
        rows,
        size,
        mean=mean or Epilogue(),
        epilogue=epilogue,
        zeros=0.7,
        **more,
    )


def steps(low, high, shape, generator=None) -> torch.Tensor:
    """Numbers that 8 bits express exactly: no rounding is a matter of taste."""
    x = torch.randint(low, high + 1, shape, generator=generator)
    x.view(-1)[0] = high
    return x / high


def norm(rows) -> Epilogue:
    channels = torch.arange(rows, dtype=torch.float64)
    return replace(
        RELU, scale=1 + 0.1 * torch.cos(channels), shift=0.2 * torch.sin(channels)
    )


@given(
    n=st.integers(1, 40),
    channels=st.integers(1, 12),
    rows=st.integers(1, 20),
    size=st.tuples(st.integers(1, 19), st.integers(1, 19)),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    kind=st.sampled_from(KINDS),
    normed=st.booleans(),
    residual=st.booleans(),
    int8=st.sampled_from(["", "lists", "two bits"]),
    isa=st.sampled_from(extension.isas()),
    threads=st.integers(1, 3),
)
@settings(max_examples=80, deadline=None)
def test_any_shape(
    n, channels, rows, size, kernel, stride, kind, normed, residual, int8, isa, threads
):
    window = Window(kernel, kernel, stride, stride, 1, 1)
    mean = norm(rows) if normed else None
    plan = mean_plan(
        n, channels, rows, size, window=window, kind=kind, residual=residual, mean=mean
    )
    g = torch.Generator().manual_seed(n)
    inputs = [steps(0, 255, value.shape, g) for value in plan.inputs.values()]
    if int8:
        plan = in_int8(
            plan, inputs, codes=int8 == "two bits" and kind is WeightKind.SIGN
        )
    with running_on(isa):
        assert_close(plan, inputs, threads=threads)


def test_negative_numbers_of_8_bits_have_exact_means_too(isa):
    plan = mean_plan(3, 6, 8, (8, 8), residual=True)
    inputs = [steps(-127, 127, value.shape) for value in plan.inputs.values()]
    plan = in_int8(plan, inputs)
    assert plan.quants["x"].low == plan.quants["r"].low == -127
    assert_close(plan, inputs)


def test_sums_beyond_16_bits_reach_the_mean(isa):
    plan = mean_plan(2, 96, 5, (6, 6))
    weight_values(plan).fill_(1.0)
    x = torch.ones(2, 96, 6, 6)
    assert_close(in_int8(plan, [x]), [x])


class Net(nn.Module):
    def __init__(self, twice: bool = False) -> None:
        super().__init__()
        self.conv, self.norm, self.head = (
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm1d(8),
            nn.Linear(8, 4),
        )
        self.twice = twice

    def forward(self, x):
        y = self.conv(x).relu()
        z = self.head(self.norm(y.mean((2, 3))).relu())
        return z + y.amax((2, 3))[:, :4] if self.twice else z


@pytest.mark.usefixtures("kernels_win")
def test_the_plan_says_that_the_mean_is_part_of_the_convolution():
    model, x = Net().eval(), torch.randn(2, 3, 9, 9)
    fast = compile(model, x, threads=1)
    assert [node.kind for node in fast.plan.nodes] == ["conv", "linear"]
    assert "global average, affine, relu" in fast.plan.describe()
    with torch.no_grad():
        assert torch.allclose(fast(x), model(x), atol=1e-5)
        assert torch.allclose(run_reference(fast.plan, [x])[0], model(x), atol=1e-5)


@pytest.mark.usefixtures("kernels_win")
def test_a_convolution_that_somebody_else_reads_keeps_its_numbers():
    model, x = Net(twice=True).eval(), torch.randn(2, 3, 9, 9)
    fast = compile(model, x, threads=1)
    assert "global average" in [node.kind for node in fast.plan.nodes]
    with torch.no_grad():
        assert torch.allclose(fast(x), model(x), atol=1e-5)


@pytest.mark.parametrize("residual", [False, True])
def test_a_dense_layer_has_its_mean_in_torch(residual):
    plan = mean_plan(2, 3, 4, (5, 5), kind=WeightKind.FLOAT, residual=residual)
    node = plan.nodes[0]
    dense = replace(plan, nodes=(replace(node, op=node.op.in_dense_torch()),))
    inputs = [torch.rand(value.shape) for value in plan.inputs.values()]
    kept = [x.clone() for x in inputs]
    assert torch.allclose(run(dense, inputs)[0], run(plan, inputs)[0], atol=1e-5)
    assert all(torch.equal(x, before) for x, before in zip(inputs, kept, strict=True))
