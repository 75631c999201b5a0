"""Softmax and norms: numbers that depend on their neighbours in one item."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tersify.runtime.capture.values import Call
from tersify.runtime.ops.base import CannotLower, Context, Op, lowers

if TYPE_CHECKING:
    from tersify.runtime.engine import Emitter
    from tersify.runtime.plan import Node, Quant

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True, eq=False)
class Softmax(Op):
    kind: ClassVar[str] = "softmax"
    axis: int

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        return sources[0].softmax(self.axis)

    def emit(self, emitter: Emitter, node: Node) -> int:
        count, behind = node.shape[self.axis], node.shape[self.axis + 1 :]
        if not behind:
            return emitter.engine.softmax(emitter.source(node), count)
        return emitter.engine.softmax_along(
            emitter.source(node), count, math.prod(behind)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerNorm(Op):
    """Of the last axis; not `centred`, it takes no mean off (RMS norm)."""

    kind: ClassVar[str] = "layer norm"
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    centred: bool = True

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        x = sources[0]
        weight, bias = _in_type(x, self.weight), _in_type(x, self.bias)
        if not self.centred:
            return F.rms_norm(x, node.shape[-1:], weight, self.eps)
        return F.layer_norm(x, node.shape[-1:], weight, bias, self.eps)

    def emit(self, emitter: Emitter, node: Node) -> int:
        source, weight, bias = (
            emitter.source(node),
            _floats(self.weight),
            _floats(self.bias),
        )
        return emitter.engine.layer_norm(
            source, node.shape[-1], weight, bias, self.eps, self.centred
        )

    def describe(self, inputs: tuple[str, ...]) -> list[str]:
        return [] if self.centred else ["root of the mean square"]


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupNorm(Op):
    """Groups of channels, each with the mean and the spread of all its positions."""

    kind: ClassVar[str] = "group norm"
    groups: int
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        x = sources[0]
        weight, bias = _in_type(x, self.weight), _in_type(x, self.bias)
        return F.group_norm(x, self.groups, weight, bias, self.eps)

    def emit(self, emitter: Emitter, node: Node) -> int:
        channels = node.shape[1]
        # Its kernel takes both lists.
        weight = _floats(self.weight) or [1.0] * channels
        bias = _floats(self.bias) or [0.0] * channels
        return emitter.engine.group_norm(
            emitter.source(node), self.groups, weight, bias, self.eps
        )


def _in_type(x: Tensor, factors: Tensor | None) -> Tensor | None:
    return None if factors is None else factors.to(x.dtype)


def _floats(factors: Tensor | None) -> list[float]:
    """As kernels take the weight or the bias of a norm: none where it has none."""
    return [] if factors is None else factors.to(torch.float32).tolist()


@lowers(aten.native_group_norm.default)
def _lower_group_norm(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    context.only_first_result(call)
    if len(context.floats(a["input"])) < 2:
        raise CannotLower("it has no channels")
    weight, bias = (
        context.optional(a["weight"], "weight"),
        context.optional(a["bias"], "bias"),
    )
    return GroupNorm(groups=a["group"], weight=weight, bias=bias, eps=a["eps"]), (
        a["input"].name,
    )


@lowers(aten._softmax.default)
def _lower_softmax(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    rank = len(context.floats(a["self"]))
    # half_to_float: the input is fp16, which the kernel does not read.
    axis = a["dim"] % max(rank, 1)
    if a["half_to_float"] or rank == 0 or (axis == 0 and rank > 1):
        raise CannotLower("only the axes of an item have a kernel")
    return Softmax(axis=axis), (a["self"].name,)


@lowers(aten.native_layer_norm.default)
def _lower_layer_norm(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    context.only_first_result(call)
    context.floats(a["input"])
    if len(a["normalized_shape"]) != 1:
        raise CannotLower("only the last axis has a kernel")
    weight, bias = (
        context.optional(a["weight"], "weight"),
        context.optional(a["bias"], "bias"),
    )
    return LayerNorm(weight=weight, bias=bias, eps=a["eps"]), (a["input"].name,)
