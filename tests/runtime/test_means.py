"""A convolution that ends in the mean of its places: one operation, whose numbers never reach memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_plans import assert_close, compiled, conv_shape, plan_of, random_weight, relu, running_on
from torch import nn

from tersify.runtime import compile, run_reference
from tersify.runtime.plan import Finish, Node, Plan, Pooled
from tersify.runtime.quantize import quantize

extension = pytest.importorskip("tersify._runtime")


def mean_plan(channels, rows, size, window, *, kind="sign", residual=False, after=None) -> Plan:
    before = conv_shape(rows, size, window)
    node = Node(
        name="y",
        kind="conv",
        inputs=("x",),
        shape=(rows,),
        weight=random_weight((rows, channels, window[0], window[1]), kind, 0.7),
        finish=replace(relu(), shift=torch.sin(torch.arange(rows, dtype=torch.float64))),
        residual="r" if residual else None,
        options={"window": window, "groups": 1},
        pooled=Pooled(before=before, finish=after or Finish()),
    )
    shapes = {"x": (channels, *size)} | ({"r": before} if residual else {})
    return plan_of(node, inputs=shapes)


def in_8_bits(plan, inputs, how) -> Plan:
    """Not at all, by lists, or by the dense kernel for two bits a weight."""
    if not how:
        return plan
    node = plan.nodes[0]
    dense = how == "two bits" and node.weight.kind == "sign"
    marked = replace(plan, nodes=(replace(node, options={**node.options, "two_bit": dense}),))
    return quantize(marked, [tuple(inputs)])


def steps(low, high, shape, generator=None) -> torch.Tensor:
    """Numbers that 8 bits express exactly: no rounding is a matter of taste."""
    x = torch.randint(low, high + 1, shape, generator=generator)
    x.view(-1)[0] = high
    return x / high


def norm(rows) -> Finish:
    places = torch.arange(rows, dtype=torch.float64)
    return replace(relu(), scale=1 + 0.1 * torch.cos(places), shift=0.2 * torch.sin(places))


@given(
    n=st.integers(1, 40),
    channels=st.integers(1, 12),
    rows=st.integers(1, 20),
    height=st.integers(1, 19),
    width=st.integers(1, 19),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    kind=st.sampled_from(["sign", "table", "float"]),
    normed=st.booleans(),
    residual=st.booleans(),
    int8=st.sampled_from(["", "lists", "two bits"]),
    isa=st.sampled_from(extension.isas()),
    threads=st.integers(1, 3),
)
@settings(max_examples=80)
def test_any_shape(n, channels, rows, height, width, kernel, stride, kind, normed, residual, int8, isa, threads):
    window = (kernel, kernel, stride, stride, 1, 1, 1, 1)
    plan = mean_plan(
        channels, rows, (height, width), window, kind=kind, residual=residual, after=norm(rows) if normed else None
    )
    g = torch.Generator().manual_seed(n)
    inputs = [steps(0, 255, (n, *i.shape), g) for i in plan.inputs]
    with running_on(isa):
        assert_close(in_8_bits(plan, inputs, int8), inputs, threads=threads)


def test_negative_numbers_of_8_bits_have_exact_means_too():
    plan = mean_plan(6, 8, (8, 8), (3, 3, 1, 1, 1, 1, 1, 1), residual=True)
    inputs = [steps(-127, 127, (3, *i.shape)) for i in plan.inputs]
    plan = quantize(plan, [tuple(inputs)])
    assert plan.quants["x"].low == plan.quants["r"].low == -127
    assert_close(plan, inputs)


def test_sums_beyond_16_bits_reach_the_mean():
    plan = mean_plan(96, 5, (6, 6), (3, 3, 1, 1, 1, 1, 1, 1))
    plan.nodes[0].weight.values.fill_(1.0)
    x = torch.ones(2, 96, 6, 6)
    plan = quantize(plan, [(x,)])
    assert_close(plan, [x])


class Net(nn.Module):
    def __init__(self, twice: bool = False) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm1d(8), nn.Linear(8, 4)
        self.twice = twice

    def forward(self, x):
        y = self.conv(x).relu()
        z = self.head(self.norm(y.mean((2, 3))).relu())
        return z + y.amax((2, 3))[:, :4] if self.twice else z


def test_the_plan_says_that_the_mean_is_part_of_the_convolution():
    model, x = Net().eval(), torch.randn(2, 3, 9, 9)
    fast = compile(model, x, threads=1)
    assert [node.kind for node in fast.plan.nodes] == ["conv", "linear"]
    assert "mean of all places, affine, relu" in fast.plan.describe()
    with torch.no_grad():
        assert torch.allclose(fast(x), model(x), atol=1e-5)
        assert torch.allclose(run_reference(fast.plan, [x])[0], model(x), atol=1e-5)


def test_a_convolution_that_somebody_else_reads_keeps_its_numbers():
    model, x = Net(twice=True).eval(), torch.randn(2, 3, 9, 9)
    fast = compile(model, x, threads=1)
    assert "mean" in [node.kind for node in fast.plan.nodes]
    with torch.no_grad():
        assert torch.allclose(fast(x), model(x), atol=1e-5)


def test_a_dense_layer_has_its_mean_in_torch():
    plan = mean_plan(3, 4, (5, 5), (3, 3, 1, 1, 1, 1, 1, 1), kind="float")
    dense = replace(plan, nodes=(replace(plan.nodes[0], options={**plan.nodes[0].options, "dense": True}),))
    x = torch.rand(2, 3, 5, 5)
    assert torch.allclose(compiled(dense)(x)[0], compiled(plan)(x)[0], atol=1e-5)
