"""Attention: softmax(q · kᵀ · scale) · v, head by head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Attention(Op):
    """Queries, keys, values and perhaps a mask: [items, heads, tokens, width], or
    tokens before heads where it is said.

    A mask of truth values arrives in the engine as ones and zeros; one of floats is
    added to the scores.
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

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        q, k, v = (
            x.transpose(1, 2) if first else x
            for x, first in zip(sources[:3], self.tokens_first[:3], strict=True)
        )
        mask = sources[3] if len(sources) > 3 else None
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
        return emitter.engine.attention(
            sources,
            (
                self.heads,
                self.key_heads,
                self.queries,
                self.keys,
                self.width,
                self.value_width,
            ),
            self.scale,
            self.causal,
            self.tokens_first,
            (self._mask_has(-3), self._mask_has(-2), self.mask_added),
        )

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
    sources = [a["query"], a["key"], a["value"]]
    q, k, v = (context.floats(source, rank=4) for source in sources)
    # [items, heads, tokens, width]. Grouped queries: several heads share one key.
    if q[0] != k[0] or k[:3] != v[:3] or q[3] != k[3] or q[1] % k[1]:
        raise CannotLower(
            "its operands do not have one batch, one width, and heads that fit"
        )
    # Without the flag torch takes different numbers of heads only where it broadcasts.
    if q[1] != k[1] and not a.get("enable_gqa"):
        raise CannotLower("its operands have different numbers of heads")
    mask_shape, added = _mask(a.get("attn_mask"), context, q, k)
    if mask_shape:
        sources.append(a["attn_mask"])
    op = Attention(
        heads=q[1],
        key_heads=k[1],
        queries=q[2],
        keys=k[2],
        width=q[3],
        value_width=v[3],
        # 1/√width is what torch takes by default.
        scale=1 / math.sqrt(q[3]) if a.get("scale") is None else float(a["scale"]),
        causal=bool(a.get("is_causal")),
        mask_shape=mask_shape,
        mask_added=added,
    )
    return op, tuple(source.name for source in sources)


def _mask(
    given: Any, context: Context, q: Sequence[int], k: Sequence[int]
) -> tuple[tuple[int, ...], bool]:
    """Its shape, and whether it is added to the scores."""
    if given is None:
        return (), False
    if not isinstance(given, Ref) or given.name in context.graph.constants:
        raise CannotLower("its mask is a constant")
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
