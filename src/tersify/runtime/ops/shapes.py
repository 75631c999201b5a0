"""Operations that only move numbers: views and concatenations."""

from __future__ import annotations

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
    """Along axis 1."""

    kind: ClassVar[str] = "concat"

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        return torch.cat(list(sources), 1)

    def emit(self, emitter: Emitter, node: Node) -> int:
        return emitter.engine.concatenate(
            [emitter.source(node, i) for i in range(len(node.inputs))]
        )


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
    # Axis 1 holds the channels. torch lets an empty tensor of one axis join any others,
    # hence the comparison of ranks.
    ranks = {len(context.floats(source)) for source in a["tensors"]}
    if len(ranks) != 1 or min(ranks) < 2 or a["dim"] % min(ranks) != 1:
        raise CannotLower("only joining along axis 1 has a kernel")
    return Concat(), tuple(source.name for source in a["tensors"])
