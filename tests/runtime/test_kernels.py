"""Law 4: every kernel, on every instruction set of this machine, agrees with the reference."""

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
    assert_close,
    compiled,
    conv_shape,
    plan_of,
    random_weight,
    relu,
    running_on,
)

from tersify.runtime.plan import Finish, Node

extension = pytest.importorskip("tersify._runtime")
ISAS = extension.isas()


def conv_node(channels, rows, size, window, *, kind="sign", zeros=0.9, groups=1, seed=0, **more):
    weight = random_weight((rows, channels // groups, window[0], window[1]), kind, zeros, seed)
    return Node(
        name="y",
        kind="conv",
        inputs=("x",),
        shape=conv_shape(rows, size, window),
        weight=weight,
        options={"window": window, "groups": groups},
        **more,
    )


def check_conv(n, channels, rows, size, window, *, threads=1, **more):
    node = conv_node(channels, rows, size, window, **more)
    inputs = {"x": (channels, *size)}
    plan = plan_of(node, inputs=inputs)
    g = torch.Generator().manual_seed(1)
    assert_close(plan, [torch.randn(n, channels, *size, generator=g)], threads=threads)


THREE = (3, 3, 1, 1, 1, 1, 1, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.9, 1.0])
def test_convolution_of_every_kind_and_share_of_zeros(isa, kind, zeros):
    check_conv(3, 20, 24, (16, 16), THREE, kind=kind, zeros=zeros)


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
        check_conv(n, 9, 13, size, window, zeros=0.7)


@pytest.mark.parametrize("groups", [1, 2, 4, 12])
def test_grouped_and_depthwise_convolution(isa, groups):
    check_conv(2, 12, 24, (10, 10), THREE, zeros=0.3, groups=groups, kind="float")


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 16, 17, 33])
def test_every_batch_size_on_one_module(isa, n):
    node = conv_node(8, 16, (8, 8), THREE)
    plan = plan_of(node, inputs={"x": (8, 8, 8)})
    module = compiled(plan, threads=2)
    for size in (n, 1, n + 1):
        assert_close(plan, [torch.randn(size, 8, 8, 8)], module=module)


def test_empty_batch_gives_an_empty_result(isa):
    module = compiled(plan_of(conv_node(4, 6, (8, 8), THREE), inputs={"x": (4, 8, 8)}))
    assert module(torch.randn(0, 4, 8, 8))[0].shape == (0, 6, 8, 8)


def test_rows_without_weights_still_get_bias_and_residual(isa):
    node = conv_node(
        6, 10, (9, 9), THREE, zeros=1.0, residual="r", finish=Finish(shift=torch.arange(10.0, dtype=torch.float64))
    )
    plan = plan_of(node, inputs={"x": (6, 9, 9), "r": (10, 9, 9)})
    assert_close(plan, [torch.randn(2, 6, 9, 9), torch.randn(2, 10, 9, 9)])


@pytest.mark.parametrize("act", ["relu", "clamp", "gelu", "silu"])
def test_the_whole_finish_of_a_sum(isa, act):
    g = torch.Generator().manual_seed(3)
    constants = [torch.randn(10, generator=g, dtype=torch.float64) for _ in range(4)]
    ends = {"relu": {"low": 0.0}, "clamp": {"low": -0.5, "high": 0.25}}.get(act, {"act": act})
    finish = Finish(scale=constants[0], shift=constants[1], scale2=constants[2], shift2=constants[3], **ends)
    node = conv_node(6, 10, (9, 9), THREE, residual="r", finish=finish)
    plan = plan_of(node, inputs={"x": (6, 9, 9), "r": (10, 9, 9)})
    assert_close(plan, [torch.randn(3, 6, 9, 9), torch.randn(3, 10, 9, 9)])


@given(**ANY_CONVOLUTION, isa=st.sampled_from(ISAS))
@settings(max_examples=120, deadline=None)
def test_convolution_of_any_shape(n, channels, rows, size, window, kind, zeros, isa, threads):
    if min(conv_shape(rows, size, window)) < 1:
        return
    with running_on(isa):
        check_conv(n, channels, rows, size, window, kind=kind, zeros=zeros, threads=threads)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "features"), [(1, 1), (10, 320), (130, 77), (257, 513)])
def test_linear_layers_of_every_kind(isa, kind, rows, features):
    weight = random_weight((rows, features), kind, 0.6)
    node = Node(
        name="y",
        kind="linear",
        inputs=("x",),
        shape=(rows,),
        weight=weight,
        finish=Finish(shift=torch.randn(rows, dtype=torch.float64), low=0.0, high=math.inf),
    )
    plan = plan_of(node, inputs={"x": (features,)})
    for n in (1, 2, 7, 64):
        assert_close(plan, [torch.randn(n, features)], threads=2)


def test_linear_layer_of_a_sequence(isa):
    node = Node(name="y", kind="linear", inputs=("x",), shape=(5, 12), weight=random_weight((12, 9), "float", 0.5))
    assert_close(plan_of(node, inputs={"x": (5, 9)}), [torch.randn(3, 5, 9)])


@pytest.mark.parametrize("is_max", [True, False])
@pytest.mark.parametrize("count_padding", [True, False])
@pytest.mark.parametrize("window", [(2, 2, 2, 2, 0, 0, 1, 1), (3, 3, 2, 2, 1, 1, 1, 1), (3, 2, 1, 1, 1, 0, 1, 1)])
def test_pools(isa, is_max, count_padding, window):
    options = {"window": window, "max": is_max, "count_padding": count_padding, "ceil": False}
    for size in ((8, 8), (13, 9)):
        node = Node(name="y", kind="pool", inputs=("x",), shape=conv_shape(5, size, window), options=options)
        assert_close(plan_of(node, inputs={"x": (5, *size)}), [torch.randn(3, 5, *size)])


@pytest.mark.parametrize("window", [(3, 3, 2, 2, 0, 0, 1, 1), (2, 2, 2, 2, 0, 0, 1, 1), (3, 3, 2, 2, 1, 1, 1, 1)])
@pytest.mark.parametrize("size", [(8, 8), (9, 6), (13, 10), (33, 18)])
def test_maxima_in_ceil_mode_see_the_rest_of_the_image(isa, window, size):
    x = torch.randn(3, 5, *size)
    shape = F.max_pool2d(x, window[:2], window[2:4], window[4:6], ceil_mode=True).shape[1:]
    options = {"window": window, "max": True, "count_padding": True, "ceil": True}
    assert_close(
        plan_of(
            Node(name="y", kind="pool", inputs=("x",), shape=tuple(shape), options=options), inputs={"x": (5, *size)}
        ),
        [x],
    )


def test_mean_over_all_places(isa):
    finish = Finish(scale=torch.randn(5, dtype=torch.float64), shift=torch.randn(5, dtype=torch.float64), low=0.0)
    for size in ((8, 8), (7, 5), (1, 3)):
        node = Node(name="y", kind="mean", inputs=("x",), shape=(5,), finish=finish)
        assert_close(plan_of(node, inputs={"x": (5, *size)}), [torch.randn(3, 5, *size)])


@pytest.mark.parametrize("multiply", [False, True])
def test_sums_and_products_between_layouts(isa, multiply):
    """One operand comes from a convolution, in lanes; the other lies flat."""
    conv = conv_node(4, 6, (10, 10), THREE)
    both = Node(
        name="z", kind="pointwise", inputs=("y",), residual="r", multiply=multiply, shape=(6, 10, 10), finish=relu()
    )
    plan = plan_of(conv, both, inputs={"x": (4, 10, 10), "r": (6, 10, 10)})
    assert_close(plan, [torch.randn(3, 4, 10, 10), torch.randn(3, 6, 10, 10)], threads=2)


def test_joined_channels_of_two_convolutions(isa):
    one = conv_node(4, 6, (10, 10), THREE)
    two = Node(**{**vars(conv_node(4, 3, (10, 10), THREE, seed=5)), "name": "w"})
    cat = Node(name="z", kind="cat", inputs=("y", "w", "x"), shape=(13, 10, 10))
    assert_close(plan_of(one, two, cat, inputs={"x": (4, 10, 10)}), [torch.randn(2, 4, 10, 10)])


def test_softmax_and_layer_norm(isa):
    softmax = Node(name="s", kind="softmax", inputs=("x",), shape=(4, 9))
    options = {"weight": torch.randn(9), "bias": torch.randn(9), "eps": 1e-5}
    norm = Node(name="y", kind="layer_norm", inputs=("x",), shape=(4, 9), options=options)
    plan = plan_of(softmax, norm, inputs={"x": (4, 9)}, outputs=("s", "y"))
    assert_close(plan, [3 * torch.randn(2, 4, 9)], threads=2)


def test_an_output_that_is_also_read_and_one_returned_twice(isa):
    conv = conv_node(4, 4, (6, 6), THREE)
    again = Node(name="z", kind="pointwise", inputs=("y",), shape=(4, 6, 6), finish=relu())
    plan = plan_of(conv, again, inputs={"x": (4, 6, 6)}, outputs=("y", "z", "y"))
    assert_close(plan, [torch.randn(5, 4, 6, 6)], threads=2)


def test_results_do_not_depend_on_the_number_of_threads(isa):
    plan = plan_of(conv_node(16, 64, (16, 16), THREE), inputs={"x": (16, 16, 16)})
    x = torch.randn(1, 16, 16, 16)
    results = [compiled(plan, threads)(x)[0] for threads in (1, 2, 3)]
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_nan_in_an_image_stays_in_that_image(isa):
    module = compiled(plan_of(conv_node(4, 6, (8, 8), THREE, finish=relu(), zeros=0.0), inputs={"x": (4, 8, 8)}))
    x = torch.randn(3, 4, 8, 8)
    clean = module(x)[0]
    x[1] = math.nan
    dirty = module(x)[0]
    assert dirty[1].isnan().all()
    assert torch.equal(dirty[[0, 2]], clean[[0, 2]])
