"""Products of bits: whole sums that are exactly those of torch, on every instruction set."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_plans import (
    WINDOWS,
    conv_plan,
    conv_shape,
    floats,
    plan_of,
    run,
    running_on,
)

from tersify.runtime.epilogue import Epilogue
from tersify.runtime.ops import ConvKernel, Levels, Linear, LinearKernel, Window
from tersify.runtime.plan import Node, Quant
from tersify.runtime.weights import Weight, WeightKind

extension = pytest.importorskip("tersify._runtime")
ISAS = extension.isas()
LEVELS = {
    "signs": Levels(quant=None),
    "ternary": Levels(quant=Quant(scale=0.5, low=-1, high=1)),
    "binary": Levels(quant=Quant(scale=0.5, low=0, high=1)),
    "three": Levels(quant=Quant(scale=0.5, low=0, high=2)),
}
some_levels = st.sampled_from(sorted(LEVELS))


def sign_weight(*shape, zeros, seed=0):
    g = torch.Generator().manual_seed(seed)
    kept = torch.rand(shape, generator=g) >= zeros
    signs = torch.where(torch.randn(shape, generator=g) >= 0, 1.0, -1.0)
    return Weight(kind=WeightKind.SIGN, values=signs * kept)


def numbers(*shape, seed=1):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    # Exact zeros and exact halves of a step are what rounding may get wrong.
    flat = x.reshape(-1)
    flat[::7], flat[1::11], flat[2::13] = 0.0, 0.25, -0.75
    return x


def linear_plan(n, rows, features, levels, zeros, **more):
    op = Linear(
        weight=sign_weight(rows, features, zeros=zeros),
        kernel=LinearKernel.BITS,
        levels=levels,
        **more,
    )
    node = Node(name="y", op=op, inputs=("x",), value=floats(n, rows))
    return plan_of(node, inputs={"x": (n, features)})


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 40),
    rows=st.integers(1, 200),
    features=st.integers(1, 300),
    name=some_levels,
    zeros=st.sampled_from([0.0, 0.4, 1.0]),
    isa=st.sampled_from(ISAS),
    threads=st.integers(1, 3),
)
def test_a_product_of_bits_is_exactly_the_sum_of_whole_numbers(
    n, rows, features, name, zeros, isa, threads
):
    levels = LEVELS[name]
    plan = linear_plan(n, rows, features, levels, zeros)
    x = numbers(n, features)
    with running_on(isa):
        (made,) = run(plan, [x], threads)
    # Steps of a half are exact in float32, and so are their sums.
    assert torch.equal(made, F.linear(levels.of(x), plan.nodes[0].op.weight.values))


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 3),
    channels=st.integers(1, 70),
    rows=st.integers(1, 80),
    size=st.tuples(st.integers(1, 21), st.integers(1, 21)),
    window=WINDOWS,
    name=some_levels,
    zeros=st.sampled_from([0.0, 0.4]),
    isa=st.sampled_from(ISAS),
    threads=st.integers(1, 3),
)
def test_a_convolution_of_bits_is_exactly_the_sum_of_whole_numbers(
    n, channels, rows, size, window, name, zeros, isa, threads
):
    if min(conv_shape(rows, size, window)) < 1:
        return
    levels = LEVELS[name]
    plan = conv_plan(n, channels, rows, size, window)
    node = plan.nodes[0]
    weight = sign_weight(*node.op.weight.shape, zeros=zeros)
    op = replace(node.op, weight=weight, kernel=ConvKernel.BITS, levels=levels)
    x = numbers(n, channels, *size)
    with running_on(isa):
        (made,) = run(replace(plan, nodes=(replace(node, op=op),)), [x], threads)
    w = window
    wanted = F.conv2d(
        levels.of(x), weight.values, None, w.stride, w.padding, w.dilation
    )
    assert torch.equal(made, wanted)


@pytest.mark.parametrize("name", LEVELS)
def test_a_convolution_of_bits_ends_in_its_epilogue_with_the_residual(name, isa):
    levels, rows = LEVELS[name], 70
    epilogue = Epilogue(
        scale=torch.linspace(0.5, 2, rows, dtype=torch.float64),
        shift=torch.linspace(-3, 3, rows, dtype=torch.float64),
        scale2=torch.full((rows,), 0.5, dtype=torch.float64),
        low=0.0,
    )
    plan = conv_plan(2, 9, rows, (6, 7), residual=True, epilogue=epilogue)
    node = plan.nodes[0]
    weight = sign_weight(*node.op.weight.shape, zeros=0.3)
    op = replace(node.op, weight=weight, kernel=ConvKernel.BITS, levels=levels)
    plan = replace(plan, nodes=(replace(node, op=op),))
    inputs = [numbers(2, 9, 6, 7), numbers(2, rows, 6, 7, seed=2)]
    (made,) = run(plan, inputs)
    wanted = op.reference(inputs, node, {})
    assert (made - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize("name", LEVELS)
def test_levels_are_bit_equal_to_torch_s(name, isa):
    levels = LEVELS[name]
    op = replace(levels)
    node = Node(name="y", op=op, inputs=("x",), value=floats(3, 37))
    x = numbers(3, 37) * 1.7
    (made,) = run(plan_of(node, inputs={"x": (3, 37)}), [x])
    assert torch.equal(made, levels.of(x))


def test_steps_that_no_power_of_two_divides_round_as_torch_divides(isa):
    quant = Quant(scale=0.1, low=-127, high=127)
    halves = (torch.arange(-140, 140) + 0.5) * torch.tensor(0.1)
    node = Node(
        name="y", op=Levels(quant=quant), inputs=("x",), value=floats(1, len(halves))
    )
    (made,) = run(plan_of(node, inputs={"x": (1, len(halves))}), [halves[None]])
    scale = torch.tensor(0.1)
    assert torch.equal(made[0], (halves / scale).round().clamp(-127, 127) * scale)


def test_more_levels_than_bits_hold_are_refused():
    module = extension
    space = module.Workspace(ISAS[-1], 1)
    engine = module.Engine(space)
    weights = module.pack_linear_bits(space, torch.ones(4, 8))
    value = engine.input(1, (8, 1, 1))
    with pytest.raises(ValueError, match=r"bits hold signs or the levels"):
        engine.linear_bits(value, weights, module.Epilogue(), (0.5, 0, 3))
    with pytest.raises(ValueError, match="the window's is 2×2"):
        module.pack_conv_bits(space, torch.ones(4, 8, 1, 1), list(Window(2, 2)))
