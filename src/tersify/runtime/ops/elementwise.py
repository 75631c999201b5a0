"""What happens number by number: norms with fixed statistics, activations, sums and products."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from tersify.runtime.capture.values import Call
from tersify.runtime.epilogue import Activation, Epilogue
from tersify.runtime.ops.base import CannotLower, Context, Op, existing, float64, lowers, number

if TYPE_CHECKING:
    from tersify.runtime.engine import Emitter
    from tersify.runtime.plan import Node, Quant

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True, eq=False)
class Elementwise(Op):
    """The epilogue applied to a value; a second input is added to it, or multiplied with it. Channels are axis 1."""

    kind: ClassVar[str] = "elementwise"
    epilogue: Epilogue = field(default_factory=Epilogue)
    multiply: bool = False

    def reference(self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]) -> Tensor:
        other = sources[1] if len(sources) > 1 else None
        return self.epilogue.apply(sources[0], other, 1, multiply=self.multiply)

    def emit(self, emitter: Emitter, node: Node) -> int:
        other = emitter.source(node, 1) if len(node.inputs) > 1 else -1
        channels = emitter.item_of(node.inputs[0])[1][0]
        epilogue = self.epilogue.in_cpp(emitter.module, channels)
        return emitter.engine.elementwise(emitter.source(node), other, self.multiply, epilogue)

    def describe(self, inputs: tuple[str, ...]) -> list[str]:
        other = f"{'×' if self.multiply else '+'} {inputs[1]}" if len(inputs) > 1 else ""
        return [self.epilogue.describe(), other]


_BATCH_NORMS = [
    *existing(aten.native_batch_norm, "default"),
    *existing(aten._native_batch_norm_legit_no_training, "default"),
]


@lowers(*_BATCH_NORMS)
def _lower_batch_norm(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    if a.get("training", False) or a["running_mean"] is None:
        raise CannotLower("it normalises with the statistics of the batch")
    context.only_first_result(call)
    if len(context.floats(a["input"])) < 2:
        raise CannotLower("it has no channels")
    mean = float64(context.constant(a["running_mean"], "mean"))
    spread = (float64(context.constant(a["running_var"], "variance")) + a["eps"]).rsqrt()
    gamma, beta = context.optional(a["weight"], "weight"), context.optional(a["bias"], "bias")
    scale = spread if gamma is None else spread * float64(gamma)
    shift = -mean * scale if beta is None else float64(beta) - mean * scale
    return Elementwise(epilogue=Epilogue(scale=scale, shift=shift)), (a["input"].name,)


def _clamp(low: Any, high: Any) -> Epilogue:
    return Epilogue(low=-math.inf if low is None else float(low), high=math.inf if high is None else float(high))


_ACTIVATIONS: dict[Any, Callable[[dict[str, Any]], Epilogue]] = {
    aten.relu.default: lambda a: _clamp(0, None),
    aten.relu6.default: lambda a: _clamp(0, 6),
    aten.hardtanh.default: lambda a: _clamp(a["min_val"], a["max_val"]),
    aten.clamp.default: lambda a: _clamp(a["min"], a["max"]),
    aten.clamp_min.default: lambda a: _clamp(a["min"], None),
    aten.clamp_max.default: lambda a: _clamp(None, a["max"]),
    aten.silu.default: lambda a: Epilogue(activation=Activation.SILU),
    aten.gelu.default: lambda a: Epilogue(activation=Activation.GELU),
}


@lowers(*_ACTIVATIONS)
def _lower_activation(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    context.floats(a["self"])
    if a.get("approximate", "none") != "none":
        raise CannotLower("the kernel computes GELU exactly, not by tanh")
    epilogue = _ACTIVATIONS[call.target](a)
    if not epilogue.low <= epilogue.high:
        raise CannotLower("its lower end lies above its upper one")
    return Elementwise(epilogue=epilogue), (a["self"].name,)


_WITH_NUMBER: dict[Any, Callable[[float], tuple[float, float]]] = {
    aten.add.Tensor: lambda c: (1.0, c),
    aten.sub.Tensor: lambda c: (1.0, -c),
    aten.mul.Tensor: lambda c: (c, 0.0),
    aten.div.Tensor: lambda c: (1.0 / c, 0.0),
}


@lowers(*_WITH_NUMBER)
def _lower_arithmetic(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    shape = context.floats(a["self"])
    other = a["other"]
    if context.is_constant(other) and context.constant(other, "operand").numel() == 1 and len(shape) > 0:
        constant = context.constant(other, "operand")
        if constant.ndim > len(shape) or constant.dtype not in (torch.float32, torch.int64, torch.int32):
            raise CannotLower("its constant changes the shape or the type")
        other = constant.item()
    if isinstance(other, (int, float)) and not isinstance(other, bool):
        return _with_number(call, float(other) * float(a.get("alpha", 1))), (a["self"].name,)
    if call.target not in (aten.add.Tensor, aten.mul.Tensor):
        raise CannotLower("differences and quotients of two tensors have no kernel")
    if a.get("alpha", 1) != 1:
        raise CannotLower("its second operand has a factor")
    if context.floats(other) != shape:
        raise CannotLower("its operands have different shapes")
    return Elementwise(multiply=call.target is aten.mul.Tensor), (a["self"].name, other.name)


def _with_number(call: Call, value: float) -> Op:
    """One affine map for all channels, which then joins its neighbours."""
    if not math.isfinite(value) or (value == 0.0 and call.target is aten.div.Tensor):
        raise CannotLower("its number makes results that are not finite")
    factor, summand = _WITH_NUMBER[call.target](value)
    return Elementwise(
        epilogue=Epilogue(
            scale=None if factor == 1.0 else number(factor), shift=None if summand == 0.0 else number(summand)
        )
    )
