"""Operations that only move numbers: views and concatenations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from tersify.runtime.capture.values import Call
from tersify.runtime.ops.base import CannotLower, Context, Op, existing, lowers

if TYPE_CHECKING:
    from tersify.runtime.engine import Emitter
    from tersify.runtime.plan import Node, Quant

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True, eq=False)
class View(Op):
    """The same numbers in the same order under another shape."""

    kind: ClassVar[str] = "view"

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        return sources[0].reshape(node.shape)

    def emit(self, emitter: Emitter, node: Node) -> int:
        items, shape = emitter.item_of_shape(node.shape)
        return emitter.engine.view(emitter.source(node), items, shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class Concat(Op):
    """Along one axis; `stacked` values do not have it yet."""

    kind: ClassVar[str] = "concat"
    axis: int = 1
    stacked: bool = False

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        return (torch.stack if self.stacked else torch.cat)(list(sources), self.axis)

    def emit(self, emitter: Emitter, node: Node) -> int:
        engine = emitter.engine
        sources = [emitter.source(node, i) for i in range(len(node.inputs))]
        if self.axis == 1 and not self.stacked:
            return engine.concatenate(sources)
        # What stands before the axis are items; of each the parts follow each other.
        items = math.prod(node.shape[: self.axis])
        parts = []
        for source, name in zip(sources, node.inputs, strict=True):
            own, shape = emitter.item_of(name)
            parts.append(
                engine.view(source, items, (own * math.prod(shape) // items, 1, 1))
            )
        return engine.concatenate(parts)

    def describe(self, inputs: tuple[str, ...]) -> list[str]:
        return [] if self.axis == 1 else [f"along axis {self.axis}"]


@lowers(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.detach.default,
    aten.alias.default,
    aten.clone.default,
    *existing(aten.squeeze, "default", "dim", "dims"),
)
def _lower_view(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    source = call.args[0]
    context.floats(source)
    return View(), (source.name,)


@lowers(*existing(aten.copy, "default"))
def _lower_copy(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    """What is written over all of a tensor."""
    source, made = call.args[1], context.graph.values[call.results[0]]
    if context.floats(source) != made.shape or made.dtype != torch.float32:
        raise CannotLower("it writes numbers of another shape or type")
    return View(), (source.name,)


@lowers(aten.cat.default)
def _lower_concat(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    # torch lets an empty tensor of one axis join any others, hence the comparison of
    # ranks.
    ranks = {len(context.floats(source)) for source in a["tensors"]}
    if len(ranks) != 1 or min(ranks) < 1:
        raise CannotLower("it joins tensors of different axes")
    op = Concat(axis=a["dim"] % min(ranks))
    return op, tuple(source.name for source in a["tensors"])


@lowers(aten.stack.default)
def _lower_stack(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    rank = {len(context.floats(source)) for source in a["tensors"]}.pop()
    op = Concat(axis=a["dim"] % (rank + 1), stacked=True)
    return op, tuple(source.name for source in a["tensors"])
