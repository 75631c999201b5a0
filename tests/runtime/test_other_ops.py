"""Law 4: pools, means, sums and products, concatenations, softmax and layer norm agree
with the reference.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from runtime_plans import RELU, assert_close, conv_plan, conv_shape, floats, plan_of

from tersify.runtime.epilogue import Epilogue
from tersify.runtime.ops import (
    AveragePool,
    Concat,
    Elementwise,
    GlobalAverage,
    LayerNorm,
    MaxPool,
    Softmax,
    View,
    Window,
)
from tersify.runtime.plan import Node

pytest.importorskip("tersify._runtime")


def node(op, shape, *, name="y", inputs=("x",)):
    return Node(name=name, op=op, inputs=inputs, value=floats(*shape))


@pytest.mark.parametrize(
    "pool",
    [
        lambda w: MaxPool(window=w),
        lambda w: AveragePool(window=w),
        lambda w: AveragePool(window=w, count_padding=False),
    ],
    ids=["max", "average", "average without padding"],
)
@pytest.mark.parametrize(
    "window", [(2, 2, 2, 2, 0, 0), (3, 3, 2, 2, 1, 1), (3, 2, 1, 1, 1, 0)]
)
def test_pools(isa, pool, window):
    w = Window(*window)
    for size in ((8, 8), (13, 9)):
        made = node(pool(w), (3, *conv_shape(5, size, w)))
        assert_close(plan_of(made, inputs={"x": (3, 5, *size)}))


@pytest.mark.parametrize("window", [(3, 3, 1, 1, 0, 0, 2, 2), (2, 3, 2, 1, 1, 1, 1, 2)])
def test_maxima_of_dilated_windows(isa, window):
    w = Window(*window)
    assert_close(
        plan_of(
            node(MaxPool(window=w), (2, *conv_shape(5, (13, 10), w))),
            inputs={"x": (2, 5, 13, 10)},
        )
    )


@pytest.mark.parametrize(
    "window", [(3, 3, 2, 2, 0, 0), (2, 2, 2, 2, 0, 0), (3, 3, 2, 2, 1, 1)]
)
@pytest.mark.parametrize("size", [(8, 8), (9, 6), (13, 10), (33, 18)])
def test_maxima_in_ceil_mode_see_the_rest_of_the_image(isa, window, size):
    w = Window(*window)
    shape = F.max_pool2d(
        torch.randn(3, 5, *size), w.kernel, w.stride, w.padding, ceil_mode=True
    ).shape
    assert_close(
        plan_of(node(MaxPool(window=w, ceil=True), shape), inputs={"x": (3, 5, *size)})
    )


def test_global_average(isa):
    epilogue = Epilogue(
        scale=torch.linspace(-1, 2, 5, dtype=torch.float64),
        shift=torch.linspace(1, -1, 5, dtype=torch.float64),
        low=0.0,
    )
    for size in ((8, 8), (7, 5), (1, 3)):
        for shape in ((3, 5), (3, 5, 1, 1)):
            assert_close(
                plan_of(
                    node(GlobalAverage(epilogue=epilogue), shape),
                    inputs={"x": (3, 5, *size)},
                )
            )


@pytest.mark.parametrize("multiply", [False, True])
def test_sums_and_products_between_layouts(isa, multiply):
    """One operand comes from a convolution, in lanes; the other lies flat."""
    conv = conv_plan(3, 4, 6, (10, 10)).nodes[0]
    both = node(
        Elementwise(multiply=multiply, epilogue=RELU),
        (3, 6, 10, 10),
        name="z",
        inputs=("y", "r"),
    )
    plan = plan_of(conv, both, inputs={"x": (3, 4, 10, 10), "r": (3, 6, 10, 10)})
    assert_close(plan, threads=2)


def test_joined_channels_of_two_convolutions(isa):
    one, two = (
        conv_plan(2, 4, 6, (10, 10)).nodes[0],
        conv_plan(2, 4, 3, (10, 10), seed=5).nodes[0],
    )
    other = Node(name="w", op=two.op, inputs=("x",), value=two.value)
    cat = node(Concat(), (2, 13, 10, 10), name="z", inputs=("y", "w", "x"))
    assert_close(plan_of(one, other, cat, inputs={"x": (2, 4, 10, 10)}))


def test_softmax_and_layer_norm(isa):
    softmax = node(Softmax(axis=2), (2, 4, 9), name="s")
    norm = node(
        LayerNorm(weight=torch.randn(9), bias=torch.randn(9), eps=1e-5), (2, 4, 9)
    )
    plain = node(LayerNorm(weight=None, bias=None, eps=1e-3), (2, 4, 9), name="p")
    plan = plan_of(
        softmax, norm, plain, inputs={"x": (2, 4, 9)}, outputs=("s", "y", "p")
    )
    assert_close(plan, [3 * torch.randn(2, 4, 9)], threads=2)


def test_an_output_that_is_also_read_and_one_returned_twice(isa):
    conv = conv_plan(5, 4, 4, (6, 6)).nodes[0]
    again = node(Elementwise(epilogue=RELU), (5, 4, 6, 6), name="z", inputs=("y",))
    plan = plan_of(conv, again, inputs={"x": (5, 4, 6, 6)}, outputs=("y", "z", "y"))
    assert_close(plan, threads=2)


@pytest.mark.parametrize(
    "shape", [(6, 150), (3, 2, 150), (1, 900), (900,), (30, 5, 3, 2), (3, 300)]
)
def test_views_of_a_convolution_may_fold_and_unfold_the_batch(isa, shape):
    conv = conv_plan(3, 4, 6, (10, 5)).nodes[0]
    view = node(View(), shape, name="v", inputs=("y",))
    again = node(Elementwise(epilogue=RELU), shape, name="z", inputs=("v",))
    assert_close(
        plan_of(conv, view, again, inputs={"x": (3, 4, 10, 5)}, outputs=("v", "z")),
        threads=2,
    )
