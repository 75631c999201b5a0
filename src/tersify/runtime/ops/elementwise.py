"""What happens number by number: norms with fixed statistics, activations, sums and
products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tersify.runtime.capture.values import Call
from tersify.runtime.epilogue import Activation, Epilogue
from tersify.runtime.ops.base import (
    CannotLower,
    Context,
    Op,
    existing,
    float64,
    lowers,
    number,
)
from tersify.runtime.ops.constant import WithConstant, of_item
from tersify.runtime.ops.move import Move, expanded

if TYPE_CHECKING:
    from tersify.runtime.engine import Emitter
    from tersify.runtime.plan import Node, Quant

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True, eq=False)
class Elementwise(Op):
    """The epilogue applied to a value; a second input is added to it, or multiplied
    with it. Channels are axis 1.

    The second input may have the size 1 where the first has more: `narrow` is its shape
    then.
    """

    kind: ClassVar[str] = "elementwise"
    epilogue: Epilogue = field(default_factory=Epilogue)
    multiply: bool = False
    narrow: tuple[int, ...] = ()

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        other = sources[1] if len(sources) > 1 else None
        return self.epilogue.apply(sources[0], other, 1, multiply=self.multiply)

    def emit(self, emitter: Emitter, node: Node) -> int:
        other = emitter.source(node, 1) if len(node.inputs) > 1 else -1
        if self.narrow:
            other = self._widened(emitter, node, other)
        channels = emitter.item_of(node.inputs[0])[1][0]
        epilogue = self.epilogue.in_cpp(emitter.module, channels)
        return emitter.engine.elementwise(
            emitter.source(node), other, self.multiply, epilogue
        )

    def _widened(self, emitter: Emitter, node: Node, other: int) -> int:
        move = Move(
            source_shape=self.narrow, axes=tuple(expanded(self.narrow, node.shape))
        )
        axes = [
            (a.size, a.low, a.high, s)
            for a, s in zip(move.axes, move.strides, strict=True)
        ]
        return emitter.engine.move(
            other, emitter.item_of_shape(node.shape)[1], axes[1:], 0, 0.0
        )

    def describe(self, inputs: tuple[str, ...]) -> list[str]:
        other = (
            f"{'×' if self.multiply else '+'} {inputs[1]}" if len(inputs) > 1 else ""
        )
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
    # γ · (x − mean) / √(var + eps) + β as x · scale + shift, in float64 so that the
    # folded constants are rounded once.
    mean = float64(context.constant(a["running_mean"], "mean"))
    spread = (
        float64(context.constant(a["running_var"], "variance")) + a["eps"]
    ).rsqrt()
    gamma, beta = (
        context.optional(a["weight"], "weight"),
        context.optional(a["bias"], "bias"),
    )
    scale = spread if gamma is None else spread * float64(gamma)
    shift = -mean * scale if beta is None else float64(beta) - mean * scale
    return Elementwise(epilogue=Epilogue(scale=scale, shift=shift)), (a["input"].name,)


def _clamp(low: Any, high: Any) -> Epilogue:
    return Epilogue(
        low=-math.inf if low is None else float(low),
        high=math.inf if high is None else float(high),
    )


_GELUS = {"none": Activation.GELU, "tanh": Activation.GELU_TANH}
_ACTIVATIONS: dict[Any, Callable[[dict[str, Any]], Epilogue]] = {
    aten.relu.default: lambda a: _clamp(0, None),
    aten.relu6.default: lambda a: _clamp(0, 6),
    aten.hardtanh.default: lambda a: _clamp(a["min_val"], a["max_val"]),
    aten.clamp.default: lambda a: _clamp(a["min"], a["max"]),
    aten.clamp_min.default: lambda a: _clamp(a["min"], None),
    aten.clamp_max.default: lambda a: _clamp(None, a["max"]),
    aten.silu.default: lambda a: Epilogue(activation=Activation.SILU),
    aten.gelu.default: lambda a: Epilogue(activation=_GELUS[a["approximate"]]),
    aten.sigmoid.default: lambda a: Epilogue(activation=Activation.SIGMOID),
    aten.tanh.default: lambda a: Epilogue(activation=Activation.TANH),
    aten.hardswish.default: lambda a: Epilogue(activation=Activation.HARD_SWISH),
    aten.neg.default: lambda a: Epilogue(scale=number(-1.0)),
    aten.hardsigmoid.default: lambda a: Epilogue(
        scale=number(1 / 6), shift=number(0.5), low=0.0, high=1.0
    ),
    aten.leaky_relu.default: lambda a: Epilogue(
        activation=Activation.LEAKY, low=float(a["negative_slope"])
    ),
}


@lowers(*_ACTIVATIONS)
def _lower_activation(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    context.floats(a["self"])
    epilogue = _ACTIVATIONS[call.target](a)
    # torch gives the upper end there; the kernels do not promise that. NaN ends are
    # refused by the same comparison.
    if epilogue.activation is Activation.CLAMP and not epilogue.low <= epilogue.high:
        raise CannotLower("its lower end lies above its upper one")
    return Elementwise(epilogue=epilogue), (a["self"].name,)


_WITH_NUMBER: dict[Any, Callable[[float], tuple[float, float]]] = {
    aten.add.Tensor: lambda c: (1.0, c),
    aten.sub.Tensor: lambda c: (1.0, -c),
    aten.mul.Tensor: lambda c: (c, 0.0),
    aten.div.Tensor: lambda c: (1.0 / c, 0.0),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class PRelu(Op):
    """Negative numbers times the slope of their channel, axis 1."""

    kind: ClassVar[str] = "prelu"
    slopes: Tensor

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        return F.prelu(sources[0], self.slopes.to(sources[0].dtype))

    def emit(self, emitter: Emitter, node: Node) -> int:
        return emitter.engine.prelu(emitter.source(node), self.slopes.tolist())


@lowers(*existing(aten._prelu_kernel, "default"))
def _lower_prelu(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    shape = context.floats(a["self"])
    slopes = context.constant(a["weight"], "slope").reshape(-1)
    if not bool(slopes.isfinite().all()):
        raise CannotLower("its slopes are not finite")
    # One slope for all channels is a leaky ReLU, which epilogues can do.
    if slopes.numel() == 1:
        epilogue = Epilogue(activation=Activation.LEAKY, low=float(slopes))
        return Elementwise(epilogue=epilogue), (a["self"].name,)
    if len(shape) < 2 or slopes.numel() != shape[1]:
        raise CannotLower("it has not one slope a channel")
    return PRelu(slopes=slopes.to(torch.float32)), (a["self"].name,)


@lowers(*_WITH_NUMBER)
def _lower_arithmetic(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    # Sums and products commute, so a constant on the left goes to the right.
    if (
        context.is_constant(a["self"])
        and call.target in (aten.add.Tensor, aten.mul.Tensor)
        and a.get("alpha", 1) == 1
    ):
        a["self"], a["other"] = a["other"], a["self"]
    shape = context.floats(a["self"])
    other = a["other"]
    if (
        context.is_constant(other)
        and context.constant(other, "operand").numel() == 1
        and len(shape) > 0
    ):
        constant = context.constant(other, "operand")
        # A float64 constant may promote the result.
        if constant.ndim > len(shape) or constant.dtype not in (
            torch.float32,
            torch.int64,
            torch.int32,
        ):
            raise CannotLower("its constant changes the shape or the type")
        other = constant.item()
    # A bool is an int for Python, yet torch treats it as another type.
    if isinstance(other, (int, float)) and not isinstance(other, bool):
        return _with_number(call, float(other) * float(a.get("alpha", 1))), (
            a["self"].name,
        )
    multiply = call.target is aten.mul.Tensor
    if call.target is aten.div.Tensor:
        if not context.is_constant(other):
            raise CannotLower("quotients of two tensors have no kernel")
        return _over_constant(context.constant(other, "divisor"), shape), (
            a["self"].name,
        )
    # a ± alpha · b: the factor belongs to the second operand.
    factor = float(a.get("alpha", 1)) * (-1 if call.target is aten.sub.Tensor else 1)
    if context.is_constant(other):
        return _with_constant(
            context.constant(other, "operand"), shape, factor, multiply
        ), (a["self"].name,)
    return _of_two(
        shape, context.floats(other), factor, multiply, (a["self"].name, other.name)
    )


def _of_two(
    shape: tuple[int, ...],
    other: tuple[int, ...],
    factor: float,
    multiply: bool,
    names: tuple[str, str],
) -> tuple[Op, tuple[str, ...]]:
    """The first operand is the wide one. The epilogue's scale is its own: operands with
    a factor change places.
    """
    scale = _number_unless(1.0, factor)
    # The epilogue scales the first operand, so the one with a factor goes first.
    if other == shape:
        op = Elementwise(epilogue=Epilogue(scale=scale), multiply=multiply)
        return op, names if scale is None else names[::-1]
    # `narrow` broadcasts over `wide`; the kernel repeats the second operand only.
    wide, narrow = (
        (shape, other)
        if len(shape) >= len(other) and math.prod(shape) > math.prod(other)
        else (other, shape)
    )
    # Axis 0 is the batch: an item is only combined with its own.
    fits = len(wide) == len(narrow) >= 2 and wide[0] == narrow[0]
    if not fits or any(n not in (1, w) for n, w in zip(narrow, wide, strict=True)):
        raise CannotLower("its operands have different shapes")
    epilogue = Epilogue(scale=scale)
    if scale is not None and wide is shape:
        # The epilogue scales the wide operand only. A sign is moved there by negating
        # both before and after the sum; another factor cannot be moved.
        if abs(factor) != 1.0:
            raise CannotLower("its narrow operand has a factor")
        epilogue = Epilogue(scale=scale, scale2=scale)  # a − b = −(b − a)
    op = Elementwise(epilogue=epilogue, multiply=multiply, narrow=narrow)
    return op, names if wide is shape else names[::-1]


def _with_constant(
    constant: Tensor, shape: tuple[int, ...], factor: float, multiply: bool
) -> Op:
    # Without the batch axis: the same constant for every item.
    item = of_item(constant, shape)
    if torch.broadcast_shapes(item.shape, shape[1:]) != shape[1:]:
        raise CannotLower("its constant changes the shape")
    item = item if multiply else item * factor
    # One number per channel is an affine map, which an epilogue can take in.
    if len(shape) > 2 and item.ndim == len(shape) - 1 and item.numel() == item.shape[0]:
        channels = float64(item).reshape(-1)
        return Elementwise(
            epilogue=Epilogue(scale=channels) if multiply else Epilogue(shift=channels)
        )
    return WithConstant(constant=item, multiply=multiply)


def _over_constant(constant: Tensor, shape: tuple[int, ...]) -> Op:
    """A product with the inverse, which differs from the quotient by a last place."""
    if constant.dtype != torch.float32:
        raise CannotLower("its constant is not of finite float32 numbers")
    inverse = float64(constant).reciprocal().to(torch.float32)
    return _with_constant(inverse, shape, 1.0, True)


def _with_number(call: Call, value: float) -> Op:
    """One affine map for all channels, which then joins its neighbours."""
    # The kernels promise nothing about infinities and NaN.
    if not math.isfinite(value) or (value == 0.0 and call.target is aten.div.Tensor):
        raise CannotLower("its number makes results that are not finite")
    factor, summand = _WITH_NUMBER[call.target](value)
    return Elementwise(
        epilogue=Epilogue(
            scale=_number_unless(1.0, factor), shift=_number_unless(0.0, summand)
        )
    )


def _number_unless(neutral: float, value: float) -> Tensor | None:
    """For an epilogue, in which a number that changes nothing is left out."""
    return None if value == neutral else number(value)
