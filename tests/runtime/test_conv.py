"""Law 4: convolutions on every instruction set of this machine agree with the
reference.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_plans import (
    ANY_CONVOLUTION,
    KINDS,
    RELU,
    THREE,
    assert_close,
    assert_in_torch_where_not_finite,
    conv_plan,
    conv_shape,
    floats,
    random_inputs,
    run,
    running_on,
    some_epilogue,
)
from torch import nn

from tersify.runtime import compile
from tersify.runtime.epilogue import Epilogue
from tersify.runtime.ops import Conv, Window
from tersify.runtime.plan import Node, Plan
from tersify.runtime.weights import WeightKind

extension = pytest.importorskip("tersify._runtime")
ISAS = extension.isas()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.9, 1.0])
def test_convolution_of_every_kind_and_share_of_zeros(isa, kind, zeros):
    assert_close(conv_plan(3, 20, 24, (16, 16), kind=kind, zeros=zeros))


@pytest.mark.parametrize(
    ("size", "window"),
    [
        ((7, 5), THREE),
        ((33, 17), (3, 3, 2, 2, 1, 1, 1, 1)),
        ((32, 32), (3, 3, 2, 2, 0, 0, 1, 1)),
        ((15, 15), (1, 1, 2, 2, 0, 0, 1, 1)),
        ((12, 20), (5, 3, 1, 2, 2, 1, 1, 1)),
        ((20, 20), (3, 3, 1, 1, 2, 2, 2, 2)),
        ((19, 23), (3, 3, 2, 3, 3, 0, 2, 1)),
        ((9, 9), (7, 7, 1, 1, 3, 3, 1, 1)),
        ((1, 40), (1, 5, 1, 2, 0, 2, 1, 1)),
        ((40, 1), (3, 1, 1, 1, 1, 0, 1, 1)),
        ((2, 2), THREE),
        ((1, 1), THREE),
        ((8, 8), (8, 8, 1, 1, 0, 0, 1, 1)),
        ((11, 11), (3, 3, 4, 4, 1, 1, 1, 1)),
    ],
)
def test_convolution_of_odd_sizes_strides_dilations_and_paddings(isa, size, window):
    for n in (1, 4):
        assert_close(conv_plan(n, 9, 13, size, Window(*window), zeros=0.7))


@pytest.mark.parametrize("groups", [1, 2, 4, 12])
def test_grouped_and_depthwise_convolution(isa, groups):
    assert_close(
        conv_plan(2, 12, 24, (10, 10), zeros=0.3, groups=groups, kind=WeightKind.FLOAT)
    )


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 16, 17, 33])
def test_every_batch_size(isa, n):
    assert_close(conv_plan(n, 8, 16, (8, 8)), threads=2)


@pytest.mark.usefixtures("kernels_win")
def test_all_batch_sizes_of_one_network_share_its_packed_weights(isa):
    layer = nn.Conv2d(8, 16, 3, padding=1)
    fast = compile(layer, torch.randn(1, 8, 8, 8), threads=2)
    resident = []
    for n in (1, 64, 2, 17, 3, 33, 1, 40):
        x = torch.randn(n, 8, 8, 8)
        with torch.no_grad():
            assert torch.allclose(fast(x), layer(x), atol=1e-5)
        resident.append(fast.weight_bytes())
    # Small batches and large ones may each need a form of their own, and no other size
    # needs another.
    assert set(resident[1:]) == {resident[1]}
    assert 0 < resident[0] <= resident[1]


class OneWeightInTwoWays(nn.Module):
    """The weight has one name, and two meanings: its channels are one group's of two,
    or all.
    """

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4, 3, 3).sign())

    def forward(self, x):
        halves = F.conv2d(x, self.weight, padding=1, groups=2)
        return halves + F.conv2d(x[:, :4], self.weight, padding=1)


@pytest.mark.usefixtures("kernels_win")
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_one_weight_in_convolutions_of_different_groups(isa, precision):
    model, x = OneWeightInTwoWays(), torch.rand(2, 8, 9, 9)
    with torch.no_grad():
        model.weight[torch.rand_like(model.weight) < 0.7] = 0
        wanted = model(x)
    error = (compile(model, x, precision=precision, threads=1)(x) - wanted).abs().max()
    assert error <= (1e-5 if precision == "fp32" else 0.02) * wanted.abs().max()


def test_empty_batch_gives_an_empty_result(isa):
    fast = compile(nn.Conv2d(4, 6, 3, padding=1), torch.randn(2, 4, 8, 8))
    assert fast(torch.randn(0, 4, 8, 8)).shape == (0, 6, 8, 8)


def test_rows_without_weights_still_get_bias_and_residual(isa):
    shift = torch.arange(10.0, dtype=torch.float64)
    assert_close(
        conv_plan(
            2, 6, 10, (9, 9), zeros=1.0, residual=True, epilogue=Epilogue(shift=shift)
        )
    )


@pytest.mark.parametrize("act", ["relu", "clamp", "gelu", "silu"])
def test_the_whole_epilogue_of_a_sum(isa, act):
    assert_close(
        conv_plan(3, 6, 10, (9, 9), residual=True, epilogue=some_epilogue(act, 10))
    )


@pytest.mark.parametrize("part", ["scale", "shift", "scale2", "shift2"])
def test_every_part_of_the_epilogue_alone(isa, part):
    epilogue = Epilogue(**{part: torch.linspace(-2, 3, 10, dtype=torch.float64)})
    assert_close(conv_plan(2, 6, 10, (9, 9), residual=True, epilogue=epilogue))


@pytest.mark.parametrize("part", ["scale", "shift", "scale2", "shift2"])
def test_one_number_for_all_channels_is_every_channel_s(isa, part):
    epilogue = Epilogue(**{part: torch.tensor([1.75], dtype=torch.float64)})
    assert_close(conv_plan(2, 6, 10, (9, 9), residual=True, epilogue=epilogue))


@given(**ANY_CONVOLUTION, isa=st.sampled_from(ISAS))
@settings(max_examples=120, deadline=None)
def test_convolution_of_any_shape(
    n, channels, rows, size, window, kind, zeros, isa, threads
):
    if min(conv_shape(rows, size, window)) < 1:
        return
    with running_on(isa):
        assert_close(
            conv_plan(n, channels, rows, size, window, kind=kind, zeros=zeros),
            threads=threads,
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("length", "stride", "padding", "dilation"),
    [(40, 1, 1, 1), (17, 2, 0, 2), (3, 1, 3, 1)],
)
def test_convolutions_of_one_dimension(isa, kind, length, stride, padding, dilation):
    wide = conv_plan(
        3,
        6,
        10,
        (1, length),
        Window(1, 3, 1, stride, 0, padding, 1, dilation),
        kind=kind,
        zeros=0.5,
    )
    op = wide.nodes[0].op
    assert isinstance(op, Conv)
    flat = Conv(
        weight=type(op.weight)(
            kind=kind, values=op.weight.values.squeeze(2), table=op.weight.table
        ),
        window=op.window,
        groups=1,
        epilogue=RELU,
    )
    shape = wide.nodes[0].shape
    node = Node(
        name="y", op=flat, inputs=("x",), value=floats(shape[0], shape[1], shape[3])
    )
    assert_close(
        Plan(inputs={"x": floats(3, 6, length)}, nodes=(node,), outputs=("y",))
    )


def test_results_do_not_depend_on_the_number_of_threads(isa):
    plan = conv_plan(1, 16, 64, (16, 16))
    inputs = random_inputs(plan)
    results = [run(plan, inputs, threads)[0] for threads in (1, 2, 3)]
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("zeros", [0.0, 0.9])
def test_what_is_not_finite_stays_in_its_image_and_meets_zero_weights_as_in_torch(
    isa, bad, zeros
):
    plan = conv_plan(3, 4, 6, (8, 8), epilogue=RELU, zeros=zeros)
    assert_in_torch_where_not_finite(plan, torch.randn(3, 4, 8, 8), bad, (1, 2, 3, 3))
