"""Attention, norms and curves in the engine agree with torch on every instruction set."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from runtime_plans import assert_close, floats, plan_of, run
from torch import Tensor, nn

from tersify.runtime import compile
from tersify.runtime.epilogue import Activation, Epilogue
from tersify.runtime.ops import (
    Attention,
    Elementwise,
    GroupNorm,
    LayerNorm,
    PRelu,
    Softmax,
)
from tersify.runtime.plan import Node

pytest.importorskip("tersify._runtime")


def attention_plan(batch, heads, key_heads, queries, keys, width, value_width, **more):
    op = Attention(
        heads=heads,
        key_heads=key_heads,
        queries=queries,
        keys=keys,
        width=width,
        value_width=value_width,
        scale=0.4,
        **more,
    )

    def shape(position, heads, tokens, width):
        return (
            (batch, tokens, heads, width)
            if op.tokens_first[position]
            else (batch, heads, tokens, width)
        )

    inputs = {
        "q": shape(0, heads, queries, width),
        "k": shape(1, key_heads, keys, width),
        "v": shape(2, key_heads, keys, value_width),
    }
    if op.mask_shape:
        inputs["m"] = op.mask_shape
    node = Node(
        name="y",
        op=op,
        inputs=tuple(inputs),
        value=floats(*shape(3, heads, queries, value_width)),
    )
    return plan_of(node, inputs=inputs)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("sizes", "more"),
    [
        ((2, 4, 4, 7, 7, 8, 8), {}),
        ((1, 3, 3, 130, 65, 32, 32), {}),
        ((2, 4, 2, 5, 33, 20, 17), {}),
        ((1, 1, 1, 1, 1, 1, 1), {}),
        ((2, 2, 2, 9, 9, 16, 16), {"causal": True}),
        ((2, 2, 1, 6, 11, 24, 40), {"tokens_first": (True, True, True, True)}),
        ((3, 2, 2, 6, 11, 24, 40), {"tokens_first": (True, False, True, False)}),
        ((3, 2, 2, 6, 11, 24, 40), {"mask_shape": (3, 1, 1, 11), "mask_added": True}),
        ((3, 2, 2, 6, 11, 24, 40), {"mask_shape": (1, 2, 6, 11), "mask_added": True}),
        ((3, 2, 2, 70, 11, 24, 40), {"mask_shape": (3, 1, 70, 11), "mask_added": True}),
    ],
)
def test_attention_of_every_size(isa, sizes, more, threads):
    assert_close(attention_plan(*sizes, **more), threads=threads)


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(24, 24) for _ in range(4))

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (3, 8)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        made = F.scaled_dot_product_attention(
            q, k, v, attn_mask=real[:, None, None, :] > 0
        )
        return self.out(made.transpose(1, 2).flatten(2))


@pytest.mark.usefixtures("kernels_win")
def test_keys_that_a_mask_hides_do_not_count_and_a_query_without_keys_makes_zeros():
    model = Attentive().eval()
    x, real = torch.randn(3, 9, 24), torch.ones(3, 9)
    real[0, 5:], real[1, :3], real[2] = 0, 0, 0
    fast = compile(model, (x, torch.ones(3, 9)), strict=True)
    found = [node for node in fast.plan.nodes if isinstance(node.op, Attention)]
    assert len(found) == 1
    assert found[0].op.tokens_first == (True, True, True, True)
    with torch.no_grad():
        wanted = model(x, real)
    assert (fast(x, real) - wanted).abs().max() <= 2e-5 * wanted.abs().max()


@pytest.mark.parametrize("act", list(Activation))
def test_curves_are_torchs_own_near_and_far(isa, act):
    low = 0.2 if act is Activation.LEAKY else -1.0
    op = Elementwise(epilogue=Epilogue(activation=act, low=low))
    plan = plan_of(
        Node(name="y", op=op, inputs=("x",), value=floats(2, 3, 501)),
        inputs={"x": (2, 3, 501)},
    )
    for spread in (1e-3, 0.6, 6.0, 60.0):
        x = torch.linspace(-spread, spread, 2 * 3 * 501).reshape(2, 3, 501)
        assert_close(plan, [x])


def test_a_small_tanh_keeps_its_digits(isa):
    op = Elementwise(epilogue=Epilogue(activation=Activation.TANH))
    plan = plan_of(
        Node(name="y", op=op, inputs=("x",), value=floats(1, 64)), inputs={"x": (1, 64)}
    )
    x = torch.linspace(1e-6, 1e-3, 64).reshape(1, 64)
    assert ((run(plan, [x])[0] - x.tanh()).abs() / x).max() < 1e-6


@pytest.mark.parametrize("width", [1, 5, 16, 33, 384, 3000])
@pytest.mark.parametrize(
    "make",
    [
        lambda width: Softmax(axis=2),
        lambda width: LayerNorm(
            weight=torch.randn(width), bias=torch.randn(width), eps=1e-5
        ),
        lambda width: LayerNorm(weight=None, bias=None, eps=0.1),
    ],
)
def test_vectors_of_every_length(isa, width, make):
    node = Node(name="y", op=make(width), inputs=("x",), value=floats(2, 3, width))
    plan = plan_of(node, inputs={"x": (2, 3, width)})
    assert_close(plan, [torch.randn(2, 3, width) * 4 + 30], threads=2)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((7,), 0),
        ((2, 7), 1),
        ((2, 7, 1), 1),
        ((3, 5, 17), 1),
        ((1, 4, 30, 31), 1),
        ((2, 3, 9, 16), 2),
        ((2, 2, 3, 4, 5), 3),
    ],
)
def test_a_softmax_over_any_axis_of_an_item(isa, shape, axis, threads):
    node = Node(name="y", op=Softmax(axis=axis), inputs=("x",), value=floats(*shape))
    x = torch.randn(shape) * 40 + 30
    assert_close(plan_of(node, inputs={"x": shape}), [x], threads=threads)


@pytest.mark.parametrize("shape", [(2, 8), (3, 8, 5), (2, 8, 7, 9)])
def test_group_norms_and_slopes_of_channels(isa, shape):
    ops = (
        GroupNorm(groups=4, weight=torch.randn(8), bias=torch.randn(8), eps=1e-5),
        GroupNorm(groups=1, weight=None, bias=None, eps=1e-3),
        PRelu(slopes=torch.randn(8)),
    )
    for op in ops:
        assert_close(
            plan_of(
                Node(name="y", op=op, inputs=("x",), value=floats(*shape)),
                inputs={"x": shape},
            )
        )


class RootMeanSquare(nn.Module):
    """As language models write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3))


@pytest.mark.usefixtures("kernels_win")
@pytest.mark.parametrize("shape", [(2, 5, 24), (3, 24), (2, 3, 4, 24)])
@pytest.mark.parametrize(
    "make",
    [
        RootMeanSquare,
        nn.RMSNorm,
        lambda width: nn.RMSNorm(width, elementwise_affine=False),
    ],
)
def test_rms_norms_are_one_operation(make, shape):
    model = nn.Sequential(nn.Linear(24, 24), make(24), nn.Linear(24, 24)).eval()
    x = torch.randn(shape)
    fast = compile(model, x, strict=True)
    assert [node.kind for node in fast.plan.nodes] == [
        "linear",
        "layer norm",
        "linear",
    ], fast.plan.describe()
    with torch.no_grad():
        wanted = model(x)
    assert (fast(x) - wanted).abs().max() <= 2e-5 * wanted.abs().max()


def test_a_norm_whose_mean_square_is_read_elsewhere_stays_right():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(24, 24)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.first(x)
            power = x.pow(2).mean(-1, keepdim=True)
            return x * torch.rsqrt(power + 1e-3), power

    model, x = Both().eval(), torch.randn(2, 5, 24)
    fast = compile(model, x, strict=True)
    with torch.no_grad():
        for made, wanted in zip(fast(x), model(x), strict=True):
            assert (made - wanted).abs().max() <= 2e-5 * wanted.abs().max()
