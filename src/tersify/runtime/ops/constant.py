"""Sums and products with a constant tensor that is the same for every item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from tersify.runtime.ops.base import CannotLower, Op, float64

if TYPE_CHECKING:
    from tersify.runtime.engine import Emitter
    from tersify.runtime.plan import Node, Quant


@dataclass(frozen=True, kw_only=True, eq=False)
class WithConstant(Op):
    """`constant` broadcasts to an item."""

    kind: ClassVar[str] = "constant"
    constant: Tensor
    multiply: bool = False

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        constant = self.constant.to(sources[0].dtype)
        return sources[0] * constant if self.multiply else sources[0] + constant

    def emit(self, emitter: Emitter, node: Node) -> int:
        numbers = (
            self.constant.to(torch.float32).expand(node.shape[1:]).reshape(-1).tolist()
        )
        return emitter.engine.with_constant(
            emitter.source(node), numbers, self.multiply
        )

    def along_last_axis(self) -> Tensor | None:
        """One number a feature of the last axis, where it is no more than that."""
        if any(size != 1 for size in self.constant.shape[:-1]):
            return None
        return float64(self.constant).reshape(-1)

    def describe(self, inputs: tuple[str, ...]) -> list[str]:
        return ["× constant" if self.multiply else "+ constant"]


def of_item(constant: Tensor, shape: Sequence[int]) -> Tensor:
    """The constant without the axis of the items, which it must not tell apart."""
    if constant.dtype != torch.float32 or not bool(constant.isfinite().all()):
        raise CannotLower("its constant is not of finite float32 numbers")
    if len(shape) < 2 or constant.ndim > len(shape):
        raise CannotLower("its constant differs from item to item")
    if constant.ndim < len(shape):
        # Broadcasting aligns shapes at their ends, so it is repeated for every item.
        return constant
    # Positions that a forward expands to its batch are the same for every item.
    if not torch.equal(constant, constant[:1].expand_as(constant)):
        raise CannotLower("its constant differs from item to item")
    return constant[0]
