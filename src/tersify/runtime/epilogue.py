"""The epilogue of a sum: what happens to it before it is stored."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


class Activation(enum.Enum):
    CLAMP = "clamp"  # to [low, high], which with infinite ends is nothing
    GELU = "gelu"
    GELU_TANH = "gelu by tanh"
    SILU = "silu"
    SIGMOID = "sigmoid"
    TANH = "tanh"
    HARD_SWISH = "hard swish"
    LEAKY = "leaky relu"  # negative numbers times `low`


_CURVES: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.GELU: F.gelu,
    Activation.GELU_TANH: lambda x: F.gelu(x, approximate="tanh"),
    Activation.SILU: F.silu,
    Activation.SIGMOID: torch.sigmoid,
    Activation.TANH: torch.tanh,
    Activation.HARD_SWISH: F.hardswish,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Epilogue:
    """×scale +shift, with the residual, ×scale2 +shift2, activation.

    The constants are float64 vectors of one value a channel, or of one value for all,
    or None.
    """

    scale: Tensor | None = None
    shift: Tensor | None = None
    scale2: Tensor | None = None
    shift2: Tensor | None = None
    activation: Activation = Activation.CLAMP
    low: float = -math.inf
    high: float = math.inf

    @property
    def activates(self) -> bool:
        return (
            self.activation is not Activation.CLAMP
            or self.low != -math.inf
            or self.high != math.inf
        )

    @property
    def is_affine(self) -> bool:
        return self.scale is not None or self.shift is not None

    @property
    def is_affine_after_residual(self) -> bool:
        return self.scale2 is not None or self.shift2 is not None

    @property
    def changes(self) -> bool:
        """It does anything to a sum that has no second affine map."""
        return self.is_affine or self.activates

    @property
    def is_uniform(self) -> bool:
        """The same for all channels, so that it commutes with a view."""
        constants = (self.scale, self.shift, self.scale2, self.shift2)
        return all(c is None or c.numel() == 1 for c in constants)

    def then(self, after: Epilogue, *, residual: bool) -> Epilogue:
        """This epilogue with `after`, which has no residual, behind it; `residual`:
        this one adds one.
        """
        assert not self.activates
        assert not after.is_affine_after_residual
        activated = replace(
            self, activation=after.activation, low=after.low, high=after.high
        )
        # Without a residual in between both affine maps are one. With one, the later
        # map applies to the sum with the residual, which is the second map's place.
        if not residual:
            scale, shift = _composed(self.scale, self.shift, after.scale, after.shift)
            return replace(activated, scale=scale, shift=shift)
        scale2, shift2 = _composed(self.scale2, self.shift2, after.scale, after.shift)
        return replace(activated, scale2=scale2, shift2=shift2)

    def scaled_by(self, factor: float) -> Epilogue:
        """The same for sums that count steps of this size."""
        if factor == 1.0:
            return self
        # Integer sums count steps; the factor turns them into real numbers before the
        # shift, which is real already.
        one = torch.ones(1, dtype=torch.float64)
        return replace(self, scale=(one if self.scale is None else self.scale) * factor)

    def apply(
        self,
        sums: Tensor,
        residual: Tensor | None,
        channel_axis: int,
        *,
        multiply: bool = False,
    ) -> Tensor:
        """The reference, in the type of the sums."""
        # The order is the kernels' own: see kernel_types.hpp.
        sums = _affine(sums, self.scale, self.shift, channel_axis)
        if residual is not None:
            sums = sums * residual if multiply else sums + residual
        sums = _affine(sums, self.scale2, self.shift2, channel_axis)
        if self.activation is Activation.LEAKY:
            return F.leaky_relu(sums, self.low)
        if self.activation is not Activation.CLAMP:
            return _CURVES[self.activation](sums)
        return sums.clamp(self.low, self.high) if self.activates else sums

    def bias(self, channels: int) -> Tensor | None:
        """The shift as torch's dense layers take it."""
        return (
            None
            if self.shift is None
            else self.shift.float().expand(channels).contiguous()
        )

    def after_bias(
        self, channel_axis: int
    ) -> Callable[[Tensor, Tensor | None], Tensor]:
        """The rest of the epilogue, for sums that have their scale and shift already; it
        works in place where the result is the same.
        """
        # The dense layer has applied both: the scale in its weights, the shift as its
        # bias.
        rest = replace(self, scale=None, shift=None)
        in_place = (
            self.activation is Activation.CLAMP and not self.is_affine_after_residual
        )
        # torch takes None for an open end and needs one comparison less then.
        low, high = (None if math.isinf(end) else end for end in (self.low, self.high))

        def finish(sums: Tensor, residual: Tensor | None) -> Tensor:
            # In place only for a clamp without a second affine map: each of these steps
            # gives the same number in place, and spares a pass over memory.
            if not in_place:
                return rest.apply(sums, residual, channel_axis)
            if residual is not None:
                sums.add_(residual)
            return sums.clamp_(low, high) if self.activates else sums

        return finish

    def in_cpp(self, module: Any, channels: int) -> Any:
        """As the kernels take it: lists of one value a channel."""

        def floats(
            constant: Tensor | None, default: float, wanted: bool
        ) -> list[float]:
            if not wanted:
                return []
            # The kernels have both constants or neither, so the missing one is neutral.
            full = torch.tensor([default]) if constant is None else constant
            return full.to(torch.float32).reshape(-1).expand(channels).tolist()

        return module.Epilogue(
            scale=floats(self.scale, 1.0, self.is_affine),
            shift=floats(self.shift, 0.0, self.is_affine),
            scale2=floats(self.scale2, 1.0, self.is_affine_after_residual),
            shift2=floats(self.shift2, 0.0, self.is_affine_after_residual),
            activation=getattr(module.Activation, self.activation.name),
            low=self.low,
            high=self.high,
        )

    def describe(self) -> str:
        # In the order in which the steps are applied.
        parts = ["affine"] if self.is_affine else []
        if self.is_affine_after_residual:
            parts.append("affine after the sum")
        if self.activation is not Activation.CLAMP:
            parts.append(self.activation.value)
        elif self.activates:
            parts.append(
                "relu"
                if (self.low, self.high) == (0, math.inf)
                else f"clamp {self.low:g}..{self.high:g}"
            )
        return ", ".join(parts)


def _composed(
    scale: Tensor | None,
    shift: Tensor | None,
    then_scale: Tensor | None,
    then_shift: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """(x·scale + shift)·then_scale + then_shift as one affine map."""
    # None stands for a scale of 1 and for a shift of 0, and stays None where it can.
    both, moved = scale, shift
    if then_scale is not None:
        both = then_scale if scale is None else scale * then_scale
        # The first shift comes before the second scale, so it is scaled as well.
        moved = None if shift is None else shift * then_scale
    if then_shift is not None:
        moved = then_shift if moved is None else moved + then_shift
    return both, moved


def _affine(
    x: Tensor, scale: Tensor | None, shift: Tensor | None, channel_axis: int
) -> Tensor:
    for constant, combine in ((scale, torch.mul), (shift, torch.add)):
        if constant is not None:
            x = combine(x, _along(constant, x, channel_axis))
    return x


def _along(constant: Tensor, x: Tensor, channel_axis: int) -> Tensor:
    if constant.numel() == 1:
        return constant.reshape(()).to(x.dtype)
    # [C] becomes [1, C, 1, …], which broadcasts along the channels.
    shape = [1] * x.ndim
    shape[channel_axis] = -1
    return constant.to(x.dtype).reshape(shape)
