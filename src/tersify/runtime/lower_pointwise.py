"""The lowerings of what happens number by number: activations, sums and products."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from tersify.runtime.lower import CannotLower, Context, arguments, lowers, pointwise
from tersify.runtime.plan import Finish, Node

aten = torch.ops.aten


_ACTIVATIONS: dict[Any, Callable[[dict[str, Any]], Finish]] = {
    aten.relu.default: lambda a: Finish(low=0.0),
    aten.relu_.default: lambda a: Finish(low=0.0),
    aten.relu6.default: lambda a: Finish(low=0.0, high=6.0),
    aten.relu6_.default: lambda a: Finish(low=0.0, high=6.0),
    aten.hardtanh.default: lambda a: Finish(low=float(a["min_val"]), high=float(a["max_val"])),
    aten.hardtanh_.default: lambda a: Finish(low=float(a["min_val"]), high=float(a["max_val"])),
    aten.clamp.default: lambda a: Finish(
        low=-math.inf if a["min"] is None else float(a["min"]), high=math.inf if a["max"] is None else float(a["max"])
    ),
    aten.silu.default: lambda a: Finish(act="silu"),
    aten.silu_.default: lambda a: Finish(act="silu"),
    aten.gelu.default: lambda a: Finish(act="gelu"),
}


@lowers(*_ACTIVATIONS)
def _activation(node: fx.Node, context: Context) -> Node:
    a = arguments(node)
    if a.get("approximate", "none") != "none":
        raise CannotLower("the kernel computes GELU exactly, not by tanh")
    return pointwise(node, context, a["self"], _ACTIVATIONS[node.target](a))


_WITH_NUMBER: dict[Any, Callable[[float], tuple[float, float]]] = {
    aten.add.Tensor: lambda c: (1.0, c),
    aten.add_.Tensor: lambda c: (1.0, c),
    aten.sub.Tensor: lambda c: (1.0, -c),
    aten.sub_.Tensor: lambda c: (1.0, -c),
    aten.mul.Tensor: lambda c: (c, 0.0),
    aten.mul_.Tensor: lambda c: (c, 0.0),
    aten.div.Tensor: lambda c: (1.0 / c, 0.0),
    aten.div_.Tensor: lambda c: (1.0 / c, 0.0),
}


@lowers(*_WITH_NUMBER)
def _binary(node: fx.Node, context: Context) -> Node:
    a = arguments(node)
    if isinstance(a["other"], (int, float)):
        return _with_number(node, context, a["self"], float(a["other"]) * float(a.get("alpha", 1)))
    if node.target not in (aten.add.Tensor, aten.add_.Tensor, aten.mul.Tensor, aten.mul_.Tensor):
        raise CannotLower("differences and quotients of two tensors have no kernel")
    if a.get("alpha", 1) != 1:
        raise CannotLower("its second operand has a factor")
    if context.shape(a["other"]) != context.shape(node):
        raise CannotLower("its operands have different shapes")
    multiply = node.target in (aten.mul.Tensor, aten.mul_.Tensor)
    return pointwise(node, context, a["self"], Finish(), residual=a["other"].name, multiply=multiply)


def _with_number(node: fx.Node, context: Context, source: Any, number: float) -> Node:
    """One affine map for all channels, which then joins its neighbours."""
    if number == 0.0 and node.target in (aten.div.Tensor, aten.div_.Tensor):
        raise CannotLower("it divides by zero")
    factor, summand = _WITH_NUMBER[node.target](number)
    channels = context.shape(source)[0]
    scale = None if factor == 1.0 else torch.full((channels,), factor, dtype=torch.float64)
    shift = None if summand == 0.0 else torch.full((channels,), summand, dtype=torch.float64)
    return pointwise(node, context, source, Finish(scale=scale, shift=shift))
