"""Inputs on a uniform grid with one scale: observed, or learned as a step (LSQ, Esser
et al. 2020).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tersify.checks import check_choice, check_range
from tersify.methods.inputs.input_method import (
    InputMethod,
    Seen,
    TrainedInput,
    passed_inside,
    register_input,
)
from tersify.tensor.inputs import LEAST_RANGE, UniformInput, uniform_levels


@register_input("uniform")
@dataclass(frozen=True, kw_only=True)
class UniformInputs(InputMethod):
    """Integers of `bits` bits times one scale for the whole tensor.

    `signed` is `yes` (−127…127), `no` (0…255, for what comes from a ReLU) or `auto`: as
    the calibration batches are. `range` = "observed" follows the largest magnitude of
    the batches, of which `momentum` keeps the old part; "learned" trains the scale with
    the network.
    """

    needs_data: ClassVar[bool] = True
    bits: int = 8
    signed: str = "auto"
    range: str = "learned"
    momentum: float = 0.95

    def __post_init__(self) -> None:
        if self.bits not in range(2, 9):
            raise ValueError(f"bits must be 2..8, got {self.bits!r}")
        check_choice("signed", self.signed, ("auto", "yes", "no"))
        check_choice("range", self.range, ("learned", "observed"))
        check_range("momentum", self.momentum, low=0.0, high=1.0, high_open=True)

    def quantizer(self, name: str, seen: Seen | None) -> TrainedInput:
        assert seen is not None
        signed = seen.lowest < 0 if self.signed == "auto" else self.signed == "yes"
        # Signed grids are symmetric: without −2^(bits−1) a kernel may swap signs
        # freely.
        low, high = (
            (-(2 ** (self.bits - 1)) + 1, 2 ** (self.bits - 1) - 1)
            if signed
            else (0, 2**self.bits - 1)
        )
        if self.range == "observed":
            return ObservedInput(low, high, seen, self.momentum)
        # LSQ starts at 2·mean/√top; of many levels that would cut off the tails that 8
        # bits can hold.
        step = min(
            max(2 * seen.mean / math.sqrt(high), seen.largest / high / 2),
            seen.largest / high,
        )
        return LearnedInput(low, high, step)


@register_input("ternary")
@dataclass(frozen=True, kw_only=True)
class TernaryInputs(InputMethod):
    """−1/0/+1 times one learned step, as FATNN's inner product wants its operands;
    0/1/2 of what is never negative.
    """

    needs_data: ClassVar[bool] = True

    def quantizer(self, name: str, seen: Seen | None) -> TrainedInput:
        assert seen is not None
        # Three levels in either case.
        low, high = (-1, 1) if seen.lowest < 0 else (0, 2)
        return LearnedInput(low, high, 2 * seen.mean / math.sqrt(high))


class GridInput(TrainedInput):
    """The integers low…high times a scale."""

    def __init__(self, low: int, high: int) -> None:
        super().__init__()
        self.low, self.high = low, high

    def scale_now(self) -> Tensor:
        raise NotImplementedError

    def facts(self) -> UniformInput:
        return UniformInput(
            scale=float(self.scale_now().detach()), low=self.low, high=self.high
        )


class ObservedInput(GridInput):
    largest: Tensor

    def __init__(self, low: int, high: int, seen: Seen, momentum: float) -> None:
        super().__init__(low, high)
        self.momentum = momentum
        self.register_buffer("largest", torch.tensor(seen.largest))

    def scale_now(self) -> Tensor:
        return self.largest.clamp(min=LEAST_RANGE) / self.high

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                # An exponential moving average of each batch's largest magnitude.
                self.largest.lerp_(x.abs().amax().to(self.largest), 1 - self.momentum)
        scale = self.scale_now()
        value = uniform_levels(x.detach(), scale, self.low, self.high)
        return passed_inside(value, x, self.low * scale, self.high * scale)


class LearnedInput(GridInput):
    """The scale is learned as the logarithm of its ratio to the first one.

    It stays positive, and an optimizer such as Adam, which moves every parameter by
    about its rate, moves a small scale by as large a part as a large one.
    """

    first: Tensor

    def __init__(self, low: int, high: int, step: float) -> None:
        super().__init__(low, high)
        self.register_buffer("first", torch.tensor(max(step, LEAST_RANGE / high)))
        self.log_ratio = nn.Parameter(torch.zeros(()))

    def scale_now(self) -> Tensor:
        return self.first * self.log_ratio.exp()

    def forward(self, x: Tensor) -> Tensor:
        return _LearnedStep.apply(x, self.scale_now(), self.low, self.high)


class _LearnedStep(torch.autograd.Function):
    """LSQ, eq. 3: inside the range the step gets round(v) − v, outside the border's
    integer, times 1/√(N·high).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, low: int, high: int) -> Tensor:
        ctx.save_for_backward(x, scale)
        ctx.low, ctx.high = low, high
        return uniform_levels(x, scale, low, high)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (gradient,) = gradients
        x, scale = ctx.saved_tensors
        v = x / scale
        inside = (v > ctx.low) & (v < ctx.high)
        clipped = v.clamp(ctx.low, ctx.high)
        # ∂(scale·round(x/scale))/∂scale with a straight-through round.
        slope = torch.where(inside, v.round() - v, clipped)
        # LSQ, section 2.2: this factor brings the step's gradient to the size of the
        # weights' own, whatever the layer's size. An empty batch must not divide by
        # zero.
        gain = 1 / math.sqrt(x.numel() * ctx.high) if x.numel() else 0.0
        return gradient * inside, (gradient * slope).sum().to(scale) * gain, None, None
