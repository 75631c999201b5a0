"""8-bit activations: the kernels do exactly the arithmetic of the quantized reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_plans import compiled, conv_shape, plan_of, random_weight, running_on
from torch import nn

from tersify.runtime import compile, run_reference
from tersify.runtime.plan import Finish, Node
from tersify.runtime.quantize import quantize

extension = pytest.importorskip("tersify._runtime")
ISAS = extension.isas()
THREE = (3, 3, 1, 1, 1, 1, 1, 1)


def narrow_plan(channels, rows, size, window, inputs, *, zeros=0.9, groups=1, residual=False, low=0.0):
    weight = random_weight((rows, channels // groups, window[0], window[1]), "sign", zeros)
    node = Node(
        name="y",
        kind="conv",
        inputs=("x",),
        shape=conv_shape(rows, size, window),
        weight=weight,
        finish=Finish(shift=2 * torch.sin(torch.arange(rows, dtype=torch.float64) + 0.3), low=low),
        residual="r" if residual else None,
        options={"window": window, "groups": groups},
    )
    shapes = {"x": (channels, *size)}
    if residual:
        shapes["r"] = node.shape
    return quantize(plan_of(node, inputs=shapes), [inputs])


def check(plan, inputs, threads=1):
    """Equal up to one step of the output where a sum lies between two steps."""
    wanted = run_reference(plan, [x.double() for x in inputs])[0]
    steps = (compiled(plan, threads)(*inputs)[0].double() - wanted).abs() / plan.quants["y"].scale
    assert steps.max() <= 1.01
    assert (steps > 0.01).double().mean() < 0.01


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("n", [1, 3, 32])
def test_signed_and_unsigned_activations(isa, signed, n):
    x = torch.randn(n, 20, 16, 16) if signed else torch.rand(n, 20, 16, 16)
    plan = narrow_plan(20, 24, (16, 16), THREE, (x,), low=float("-inf") if signed else 0.0)
    assert plan.quants["x"].low == (-127 if signed else 0)
    check(plan, [x])


def test_sums_that_would_overflow_16_bits_are_moved_in_time(isa):
    """All weights +1 and all activations at their largest: 96 · 9 · 255 is far beyond 16 bits."""
    x = torch.ones(2, 96, 6, 6)
    plan = narrow_plan(96, 20, (6, 6), THREE, (x,), zeros=0.0)
    plan.nodes[0].weight.values.fill_(1.0)
    plan = quantize(replace(plan, quants={}), [(x,)])
    check(plan, [x])


def test_residuals_have_a_scale_of_their_own(isa):
    x, r = torch.rand(3, 8, 9, 9), 5 * torch.randn(3, 12, 9, 9)
    check(narrow_plan(8, 12, (9, 9), THREE, (x, r), residual=True), [x, r])


@given(
    n=st.integers(1, 40),
    channels=st.integers(1, 30),
    rows=st.integers(1, 20),
    height=st.integers(1, 17),
    width=st.integers(1, 17),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    zeros=st.sampled_from([0.0, 0.7, 1.0]),
    isa=st.sampled_from(ISAS),
    threads=st.integers(1, 3),
)
@settings(max_examples=60)
def test_any_shape(n, channels, rows, height, width, kernel, stride, padding, zeros, isa, threads):
    window = (*kernel, *stride, *padding, 1, 1)
    if min(conv_shape(rows, (height, width), window)) < 1:
        return
    x = torch.rand(n, channels, height, width, generator=torch.Generator().manual_seed(n))
    with running_on(isa):
        check(narrow_plan(channels, rows, (height, width), window, (x,), zeros=zeros), [x], threads)


def test_only_ternary_convolutions_become_narrow_and_the_plan_says_so():
    ternary, plain = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
    ternary.weight.data = ternary.weight.data.sign() * (torch.rand_like(ternary.weight) < 0.3)
    model = nn.Sequential(ternary, nn.ReLU(), plain, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    x = torch.randn(8, 3, 12, 12)
    fast = compile(model, x, precision="int8", threads=1)
    described = fast.plan.describe().splitlines()
    assert "int8 activations" in described[0]
    assert "int8 activations" not in described[1]
    with torch.no_grad():
        wanted = model(x)
    assert (fast(x) - wanted).abs().max() < 0.02 * wanted.abs().max()


def test_a_plain_convolution_before_a_ternary_one_keeps_its_weights():
    plain, ternary = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
    ternary.weight.data = ternary.weight.data.sign() * (torch.rand_like(ternary.weight) < 0.3)
    model = nn.Sequential(plain, nn.ReLU(), ternary).eval()
    x = torch.randn(4, 3, 12, 12)
    fast = compile(model, x, precision="int8", threads=1)
    described = fast.plan.describe().splitlines()
    assert "int8 activations" not in described[0]
    assert "int8 activations" in described[1]
    with torch.no_grad():
        wanted = model(x)
    assert (fast(x) - wanted).abs().max() < 0.02 * wanted.abs().max()


@pytest.mark.parametrize("as_list", [True, False])
def test_calibration_batches_set_the_ranges(as_list):
    layer = nn.Conv2d(3, 8, 3)
    layer.weight.data = layer.weight.data.sign()
    wide = 10 * torch.ones(2, 3, 8, 8)
    fast = compile(layer, torch.rand(2, 3, 8, 8), precision="int8", calibration=[wide] if as_list else wide)
    assert fast.plan.quants[fast.plan.inputs[0].name].scale == pytest.approx(10 / 255)


def test_a_ternary_linear_layer_rounds_every_vector_to_127_steps():
    layer = nn.Linear(1000, 130)
    layer.weight.data = layer.weight.data.sign() * (torch.rand_like(layer.weight) < 0.6)
    x = torch.randn(3, 1000)
    fast = compile(layer, x, precision="int8", threads=2)
    assert "int8 activations" in fast.plan.describe()
    step = x.abs().amax(1, keepdim=True) / 127
    with torch.no_grad():
        error = (fast(x) - layer((x / step).round() * step)).abs() / step
    assert error.max() < 1.1
    assert not torch.equal(fast(x), compile(layer, x, threads=2)(x))


def test_every_calibration_batch_counts_for_the_range_of_a_value():
    node = narrow_plan(2, 3, (5, 5), THREE, (torch.rand(1, 2, 5, 5),)).nodes[0]
    plan = plan_of(node, inputs={"x": (2, 5, 5)})
    batches = [(torch.full((1, 2, 5, 5), value),) for value in (-2.0, 3.0, 1.0)]
    for order in (batches, batches[::-1]):
        quant = quantize(plan, order).quants["x"]
        assert (quant.low, quant.high) == (-127, 127)
        assert quant.scale == pytest.approx(3.0 / 127)
