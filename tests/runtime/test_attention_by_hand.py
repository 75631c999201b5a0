"""Attention that a forward writes as products and a softmax: one operation in the
engine, with what torch makes of the products, NaN and infinity included.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from against_torch import check
from torch import Tensor, nn

from tersify.runtime import compile
from tersify.runtime.ops import Attention

pytest.importorskip("tersify._runtime")

WIDTH, HEADS = 24, 3
Scores = Callable[[Tensor, Tensor], Tensor]


class ByHand(nn.Module):
    """`weigh` makes the weights of queries and keys, heads apart."""

    def __init__(self, weigh: Scores, split: str = "split") -> None:
        super().__init__()
        self.three = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.weigh, self.split = weigh, split

    def forward(self, x: Tensor) -> Tensor:
        y = self.three(x)
        if self.split == "unbind":
            q, k, v = y.unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            pieces = y.chunk(3, -1) if self.split == "chunk" else y.split(WIDTH, -1)
            q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in pieces)
        return self.out((self.weigh(q, k) @ v).transpose(1, 2).flatten(2))


def plain(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1)


def before(q: Tensor, k: Tensor) -> Tensor:
    return ((q * q.shape[-1] ** -0.5) @ k.mT).softmax(-1)


def causal_filled(q: Tensor, k: Tensor) -> Tensor:
    size = q.shape[-2]
    seen = torch.tril(torch.ones(size, size)).view(1, 1, size, size)
    scores = q @ k.transpose(-2, -1) * 0.3
    return scores.masked_fill(seen == 0, float("-inf")).softmax(-1)


def causal_added(q: Tensor, k: Tensor) -> Tensor:
    mask = torch.full((q.shape[-2], k.shape[-2]), float("-inf")).triu(1)
    return (mask + q @ k.transpose(-2, -1)).softmax(-1)


def chosen(q: Tensor, k: Tensor) -> Tensor:
    seen = torch.arange(k.shape[-2]) < k.shape[-2] - 1
    lowest = torch.tensor(torch.finfo(torch.float32).min)
    return torch.where(seen, q @ k.mT, lowest).softmax(-1)


def biased(q: Tensor, k: Tensor) -> Tensor:
    places = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]
    slopes = torch.tensor([0.5, 0.25, 0.1]).view(HEADS, 1, 1)
    return ((q @ k.mT + slopes * places) * 0.5).softmax(-1)


def windows(q: Tensor, k: Tensor) -> Tensor:
    """Another mask for every second item, as shifted windows have them."""
    mask = torch.zeros(2, 1, q.shape[-2], k.shape[-2])
    mask[1, :, :, 0] = -100.0
    return (q @ k.mT + mask.repeat(len(q) // 2, 1, 1, 1)).softmax(-1)


def windows_apart(q: Tensor, k: Tensor) -> Tensor:
    """The same with an axis of its own for the windows, behind another mask."""
    size, keys = q.shape[-2], k.shape[-2]
    mask = torch.zeros(2, size, keys)
    mask[1, :, 0] = -100.0
    scores = q @ k.mT + torch.linspace(-1, 1, HEADS * keys).view(1, HEADS, 1, keys)
    apart = scores.view(len(q) // 2, 2, HEADS, size, keys) + mask[None, :, None]
    return apart.view(-1, HEADS, size, keys).softmax(-1)


WEIGHTS = [
    windows_apart,
    plain,
    before,
    causal_filled,
    causal_added,
    chosen,
    biased,
    windows,
]


def attentions(fast) -> list[Attention]:
    return [node.op for node in fast.plan.nodes if isinstance(node.op, Attention)]


@pytest.mark.parametrize("split", ["split", "chunk", "unbind"])
@pytest.mark.parametrize("weigh", WEIGHTS, ids=lambda f: f.__name__)
def test_it_is_one_operation(weigh, split):
    model = ByHand(weigh, split).eval()
    for shape, threads in (((2, 7, WIDTH), 1), ((4, 33, WIDTH), 2)):
        x = torch.randn(shape)
        fast = compile(model, x, strict=True, threads=threads)
        assert "0 torch calls" in fast.plan.describe()
        assert len(attentions(fast)) == 1
        check(fast, model, x)


@pytest.mark.parametrize("weigh", WEIGHTS, ids=lambda f: f.__name__)
def test_every_instruction_set_makes_it(isa, weigh):
    model, x = ByHand(weigh).eval(), torch.randn(4, 50, WIDTH)
    check(compile(model, x, strict=True), model, x)


def test_a_mask_that_hides_what_comes_later_is_no_table():
    for weigh in (causal_filled, causal_added):
        (op,) = attentions(compile(ByHand(weigh).eval(), torch.randn(2, 7, WIDTH)))
        assert op.causal
        assert op.mask is None


@pytest.mark.parametrize("weigh", WEIGHTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_what_torch_makes_of_it(weigh, number):
    model, x = ByHand(weigh).eval(), torch.randn(2, 7, WIDTH)
    fast = compile(model, x)
    x[1, 3, 5] = number
    check(fast, model, x)


def test_a_query_that_sees_nothing_makes_nan_as_the_products_do():
    def blind(q: Tensor, k: Tensor) -> Tensor:
        hidden = torch.arange(q.shape[-2]) == 2
        return (q @ k.mT).masked_fill(hidden[:, None], float("-inf")).softmax(-1)

    model, x = ByHand(blind).eval(), torch.randn(2, 7, WIDTH)
    fast = compile(model, x)
    assert attentions(fast) == []
    check(fast, model, x)


class Watched(nn.Module):
    """Gives its weights back, too."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.inside(x)
        weights = (y @ y.mT).softmax(-1)
        return weights @ y, weights


def test_weights_that_somebody_reads_are_not_computed_twice():
    model, x = Watched().eval(), torch.randn(2, 7, WIDTH)
    fast = compile(model, x)
    assert attentions(fast) == []
    check(fast, model, x)


class Cross(nn.Module):
    """One head, and other keys."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        q, k = self.q(x), self.k(y)
        return torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), y)


def test_one_head_of_other_keys():
    model, x, y = Cross().eval(), torch.randn(2, 7, WIDTH), torch.randn(2, 5, WIDTH)
    fast = compile(model, (x, y), strict=True)
    assert len(attentions(fast)) == 1
    check(fast, model, x, y)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.three = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.three(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return (q @ k.mT + mask[None, None]).softmax(-1) @ v


def test_a_mask_from_outside_is_added():
    model, x, mask = Masked().eval(), torch.randn(2, 7, WIDTH), torch.randn(7, 7)
    fast = compile(model, (x, mask), strict=True)
    assert len(attentions(fast)) == 1
    check(fast, model, x, mask)


def test_torch_gets_its_own_calls_back_where_a_kernel_is_wrong(monkeypatch):
    real = Attention.emit
    monkeypatch.setattr(
        Attention,
        "emit",
        lambda op, emitter, node: emitter.engine.with_constant(
            real(op, emitter, node), [1.0] * math.prod(node.shape[1:]), False
        ),
    )
    model, x = ByHand(plain).eval(), torch.randn(2, 7, WIDTH)
    with pytest.warns(RuntimeWarning, match="disagreed with torch"):
        fast = compile(model, x)
    names = fast.plan.describe()
    assert "_softmax" in names
    assert "attention_by_hand" not in names
    check(fast, model, x)


class Fresh(nn.Module):
    """Values that depend on the size of the input alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.GRU(WIDTH, 8, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        state = x.new_zeros(1, len(x), 8) + torch.ones_like(x[:1, :1, :8])
        return self.layers(x, state)[0], torch.zeros_like(x)


def test_values_of_sizes_alone_are_constants_but_for_results():
    model, x = Fresh().eval(), torch.randn(2, 7, WIDTH)
    fast = compile(model, x)
    kinds = [node.kind for node in fast.plan.nodes]
    assert kinds.count("torch call") == 1
    check(fast, model, x)
    fast(x)[1].fill_(3)
    check(fast, model, x)
