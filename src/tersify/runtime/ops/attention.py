"""Attention: softmax(q · kᵀ · scale) · v, head by head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tersify.runtime.capture.values import Call, Ref
from tersify.runtime.ops.base import CannotLower, Context, Op, existing, lowers

if TYPE_CHECKING:
    from tersify.runtime.engine import Emitter
    from tersify.runtime.plan import Node, Quant

aten = torch.ops.aten
HIDDEN = -1e30  # added to a score, it leaves nothing of it


def attention_by_hand(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None,
    added: Tensor | None,
    hidden: Tensor | None,
    scale: float,
    filled: float,
) -> Tensor:
    """What a forward computes that does without torch's own call: where all scores of a
    query are −∞ it makes NaN, not zeros. A mask from outside and one that is constant
    are added, and the hidden scores are replaced.
    """
    scores = query @ key.transpose(-2, -1) * scale
    for one in (mask, added):
        scores = scores if one is None else scores + one.to(scores.dtype)
    scores = scores if hidden is None else scores.masked_fill(hidden, filled)
    return scores.softmax(-1) @ value


def constant_mask(added: Tensor | None, hidden: Tensor | None) -> Tensor | None:
    """Both as numbers to add, none below `HIDDEN`."""
    if hidden is None:
        return None if added is None else added.clamp(min=HIDDEN)
    below = torch.where(hidden, HIDDEN, 0.0)
    return (below if added is None else below + added).clamp(min=HIDDEN)


@dataclass(frozen=True, kw_only=True, eq=False)
class ByHand:
    """The constants of an attention that a forward computes without torch's own call."""

    added: Tensor | None
    hidden: Tensor | None
    filled: float

    def of(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any, scale: float
    ) -> Tensor:
        return attention_by_hand(
            query,
            key,
            value,
            mask=mask,
            added=self.added,
            hidden=self.hidden,
            scale=scale,
            filled=self.filled,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Attention(Op):
    """Queries, keys, values and perhaps a mask: [items, heads, tokens, width], or
    tokens before heads where it is said.

    A mask of truth values arrives in the engine as ones and zeros; one of floats is
    added to the scores. `mask` is one that is added at every run, [items that begin
    again and again, heads or 1, queries or 1, keys].
    """

    kind: ClassVar[str] = "attention"
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int
    value_width: int
    scale: float
    causal: bool = False
    # of queries, keys, values, result
    tokens_first: tuple[bool, bool, bool, bool] = (False, False, False, False)
    mask_shape: tuple[int, ...] = ()
    mask_added: bool = False
    mask: Tensor | None = None
    by_hand: ByHand | None = None

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        q, k, v = (
            x.transpose(1, 2) if first else x
            for x, first in zip(sources[:3], self.tokens_first[:3], strict=True)
        )
        mask = sources[3] if len(sources) > 3 else None
        if self.by_hand is not None:
            made = self.by_hand.of(q, k, v, mask, self.scale)
            return made.transpose(1, 2).contiguous() if self.tokens_first[3] else made
        if self.mask is not None:
            mask = self.mask.to(q.dtype).repeat(len(q) // len(self.mask), 1, 1, 1)
        made = F.scaled_dot_product_attention(
            q,
            k,
            v,
            mask,
            is_causal=self.causal,
            scale=self.scale,
            enable_gqa=self.heads != self.key_heads,
        )
        return made.transpose(1, 2).contiguous() if self.tokens_first[3] else made

    def emit(self, emitter: Emitter, node: Node) -> int:
        sources = [emitter.source(node, i) for i in range(len(node.inputs))]
        sizes = (
            self.heads,
            self.key_heads,
            self.queries,
            self.keys,
            self.width,
            self.value_width,
        )
        mask = (self._mask_has(-3), self._mask_has(-2), self.mask_added)
        how = (sources, sizes, self.scale, self.causal, self.tokens_first, mask)
        if self.mask is None:
            return emitter.engine.attention(*how)
        return emitter.engine.attention_masked(*how, self.mask.reshape(-1).tolist())

    def _mask_has(self, axis: int) -> bool:
        return len(self.mask_shape) >= -axis and self.mask_shape[axis] > 1

    def describe(self, inputs: tuple[str, ...]) -> list[str]:
        return [f"{self.heads} heads of {self.width}", "causal" if self.causal else ""]


@lowers(
    *existing(aten.scaled_dot_product_attention, "default"),
    *existing(aten._scaled_dot_product_flash_attention_for_cpu, "default"),
)
def _lower(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    context.only_first_result(call)
    if a.get("dropout_p"):
        raise CannotLower("it drops some of the products")
    taken = [a["query"], a["key"], a["value"]]
    q, k, v = (context.floats(source, rank=4) for source in taken)
    # Without the flag torch takes different numbers of heads only where it broadcasts.
    if q[1] != k[1] and not a.get("enable_gqa"):
        raise CannotLower("its operands have different numbers of heads")
    # 1/√width is what torch takes by default.
    scale = 1 / math.sqrt(q[3]) if a.get("scale") is None else float(a["scale"])
    op = _attention(q, k, v, scale, causal=bool(a.get("is_causal")))
    mask = a.get("attn_mask")
    if context.is_constant(mask):
        op = _with_constant(op, _added(context.constant(mask, "mask")), q[0])
        mask = None
    return _with_mask(op, context, taken, mask)


@lowers(attention_by_hand)
def _lower_by_hand(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    taken, a = list(call.args), call.kwargs
    q, k, v = (context.floats(source, rank=4) for source in taken)
    added, hidden = (context.optional(a[name], "mask") for name in ("added", "hidden"))
    op = _attention(q, k, v, a["scale"])
    op = replace(op, by_hand=ByHand(added=added, hidden=hidden, filled=a["filled"]))
    constant = constant_mask(added, hidden)
    if constant is not None:
        op = _with_constant(op, constant, q[0])
    return _with_mask(op, context, taken, a["mask"])


def _attention(
    q: Sequence[int],
    k: Sequence[int],
    v: Sequence[int],
    scale: float,
    *,
    causal: bool = False,
) -> Attention:
    # [items, heads, tokens, width]. Grouped queries: several heads share one key.
    if q[0] != k[0] or tuple(k[:3]) != tuple(v[:3]) or q[3] != k[3] or q[1] % k[1]:
        raise CannotLower(
            "its operands do not have one batch, one width, and heads that fit"
        )
    return Attention(
        heads=q[1],
        key_heads=k[1],
        queries=q[2],
        keys=k[2],
        width=q[3],
        value_width=v[3],
        scale=scale,
        causal=causal,
    )


def _with_mask(
    op: Attention, context: Context, taken: list[Ref], mask: Any
) -> tuple[Op, tuple[str, ...]]:
    """And the names of what it reads, a mask among them if it is no constant."""
    if mask is not None:
        q = context.floats(taken[0])
        shape, added = _mask(mask, context, q, context.floats(taken[1]))
        op, taken = replace(op, mask_shape=shape, mask_added=added), [*taken, mask]
    return op, tuple(source.name for source in taken)


def _added(mask: Tensor) -> Tensor:
    """As numbers to add to the scores."""
    if mask.dtype not in (torch.bool, torch.float32) or mask.ndim > 4:
        raise CannotLower("its mask is no tensor of booleans or floats")
    if mask.dtype == torch.bool:
        return torch.where(mask, 0.0, HIDDEN)
    return mask.clamp(min=HIDDEN)


def _with_constant(op: Attention, given: Tensor, items: int) -> Attention:
    """The attention with a mask that is the same at every run."""
    mask = given.reshape(*[1] * (4 - given.ndim), *given.shape)
    sizes = (items, op.heads, op.queries, op.keys)
    if any(a not in (1, b) for a, b in zip(mask.shape, sizes, strict=True)):
        raise CannotLower("its mask does not fit its scores")
    if not bool((mask < torch.inf).all()):
        raise CannotLower("its mask is not of finite numbers")
    mask = mask.expand(*mask.shape[:3], op.keys)
    if not bool((mask > HIDDEN).any(-1).all()):
        raise CannotLower("its mask hides all keys of a query")
    if not bool(mask.any()):
        return op
    # Of windows of one image, again and again.
    counts = (n for n in range(1, len(mask) + 1) if len(mask) % n == 0)
    same = mask.flatten(1)
    count = next(
        n for n in counts if bool((same.unflatten(0, (-1, n)) == same[:n]).all())
    )
    mask = mask[:count].contiguous()
    hidden = torch.ones(op.queries, op.keys, dtype=torch.bool).triu(1)
    if mask.numel() == hidden.numel() and torch.equal(mask[0, 0], hidden * HIDDEN):
        return replace(op, causal=True)
    return replace(op, mask=mask, mask_shape=tuple(mask.shape), mask_added=True)


def _mask(
    given: Any, context: Context, q: Sequence[int], k: Sequence[int]
) -> tuple[tuple[int, ...], bool]:
    """Its shape, and whether it is added to the scores."""
    if not isinstance(given, Ref):
        raise CannotLower("its mask is no tensor")
    value = context.graph.values[given.name]
    shape = value.shape
    if (
        value.dtype not in (torch.bool, torch.float32)
        or len(shape) != 4
        or shape[3] != k[2]
    ):
        raise CannotLower(
            "its mask must be a tensor of booleans or floats with one number for each key"
        )
    # Leading axes of 1 broadcast over items, heads or queries.
    if any(
        size not in (1, wanted)
        for size, wanted in zip(shape, (q[0], q[1], q[2]), strict=False)
    ):
        raise CannotLower("its mask does not fit its scores")
    if value.dtype == torch.float32 and shape[0] != 1:
        raise CannotLower(
            "a mask of floats may hold infinity, which an engine does not take"
        )
    return shape, value.dtype == torch.float32
