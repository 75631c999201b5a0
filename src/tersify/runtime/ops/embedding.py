"""Rows of a constant matrix by their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tersify.runtime.capture.values import Call, Ref
from tersify.runtime.ops.base import CannotLower, Context, Op, lowers
from tersify.runtime.weights import Weight, WeightKind

if TYPE_CHECKING:
    from tersify.runtime.engine import Emitter
    from tersify.runtime.plan import Node, Quant

aten = torch.ops.aten
MAX_LEVELS = 255  # besides zero: above, the numbers are kept as they are


@dataclass(frozen=True, kw_only=True, eq=False)
class Embedding(Op):
    kind: ClassVar[str] = "embedding"
    weight: Weight
    parameter: str = ""

    @property
    def rows(self) -> int:
        return len(self.weight.values)

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        values = self.weight.factors
        if self.weight.row_scale is not None:
            values = values * self.weight.row_scale.unsqueeze(1)
        return F.embedding(sources[0], values)

    def emit(self, emitter: Emitter, node: Node) -> int:
        weight = self.weight
        # A code is one byte and zero takes one of its 256 values.
        levels = [-1.0, 1.0] if weight.kind is WeightKind.SIGN else weight.table_list
        scale = [] if weight.row_scale is None else weight.row_scale.tolist()
        weights = emitter.packed(
            weight,
            (self.kind,),
            lambda: emitter.module.pack_embedding(
                weight.factors.contiguous(),
                levels if len(levels) <= MAX_LEVELS else [],
                scale,
            ),
        )
        return emitter.engine.embedding(emitter.source(node), weights)

    def describe(self, inputs: tuple[str, ...]) -> list[str]:
        return [self.weight.describe()]


@lowers(aten.embedding.default)
def _lower(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    ids = a["indices"]
    # Constant ids would make the whole look-up a constant, which torch computes.
    if (
        not isinstance(ids, Ref)
        or context.is_constant(ids)
        or context.graph.values[ids.name].dtype != torch.int64
    ):
        raise CannotLower("its numbers are no int64 value")
    shape = context.graph.values[ids.name].shape
    if 0 in shape or not shape:
        raise CannotLower("its numbers have no axis")
    weight = context.weight(a["weight"])
    if len(weight.shape) != 2:
        raise CannotLower("the kernel takes a weight of two axes")
    return Embedding(weight=weight, parameter=context.parameter(a["weight"])), (
        ids.name,
    )
