"""Convolutions of one and two dimensions with constant weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tersify.runtime.capture.values import Call
from tersify.runtime.epilogue import Epilogue
from tersify.runtime.ops.base import CannotLower, Context, Op, float64_if_given, lowers
from tersify.runtime.ops.conv_emission import (
    emit_bits,
    emit_codes,
    emit_dense,
    emit_int8_lists,
    emit_lists,
)
from tersify.runtime.ops.conv_kernels import ConvKernel as ConvKernel
from tersify.runtime.ops.levels import Levels
from tersify.runtime.ops.rounding import as_fp16, quantized
from tersify.runtime.ops.transposed import lower_transposed
from tersify.runtime.ops.window import Window
from tersify.runtime.weights import Weight

if TYPE_CHECKING:
    from tersify.runtime.engine import Emitter
    from tersify.runtime.plan import Node, Quant

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True, eq=False)
class Pooling:
    """A pool folded into a convolution, whose own result has the shape `before`.

    Either the maxima of windows side by side, or the mean over all positions with an
    epilogue of its own.
    """

    before: tuple[int, ...]
    window: Window | None = None
    epilogue: Epilogue = field(default_factory=Epilogue)

    @property
    def is_mean(self) -> bool:
        return self.window is None

    def apply(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        if self.window is None:
            return self.epilogue.apply(x.flatten(2).mean(2), None, 1).reshape(shape)
        # A signal is an image of height 1.
        x = x if x.ndim == 4 else x.unsqueeze(2)
        return F.max_pool2d(x, self.window.kernel, self.window.stride).reshape(shape)

    def describe(self) -> str:
        if self.window is not None:
            return f"max pool {self.window.kernel_h}×{self.window.kernel_w}"
        after = self.epilogue.describe()
        return "global average" + (f", {after}" if after else "")


@dataclass(frozen=True, kw_only=True, eq=False)
class Conv(Op):
    """The first input is convolved; a second one is the residual that the epilogue
    adds.
    """

    kind: ClassVar[str] = "conv"
    weight: Weight
    window: Window
    groups: int
    parameter: str = ""
    epilogue: Epilogue = field(default_factory=Epilogue)
    pooling: Pooling | None = None
    kernel: ConvKernel = ConvKernel.LISTS_F32
    # of its input, and of its output where only a rounding reads it
    levels: Levels | None = None
    made_levels: Levels | None = None
    in_floats: bool = False  # its activations must not be rounded to 8 bits

    @property
    def in_torch(self) -> bool:
        return self.kernel is ConvKernel.TORCH

    @property
    def is_mean(self) -> bool:
        return self.pooling is not None and self.pooling.is_mean

    @property
    def in_levels(self) -> bool:
        """Its kernel rounds the input to its levels."""
        return self.levels is not None and self.kernel in (
            ConvKernel.BITS,
            ConvKernel.CODES_I8,
            ConvKernel.LISTS_I8,
        )

    def sums_shape(self, node: Node) -> tuple[int, ...]:
        """Of what the weight makes, before it is pooled."""
        return node.shape if self.pooling is None else self.pooling.before

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        # Each kernel family rounds other values: lists round all that they read and
        # write, dense codes round only what they convolve.
        if self.kernel is ConvKernel.LISTS_I8:
            sources = [
                quantized(x, quants[name])
                for x, name in zip(sources, node.inputs, strict=True)
            ]
        elif self.kernel is ConvKernel.LISTS_F16:
            sources = list(map(as_fp16, sources))
        elif self.in_levels:
            assert self.levels is not None
            sources = [self.levels.of(sources[0]), *sources[1:]]
        elif self.kernel is ConvKernel.CODES_I8:
            sources = [quantized(sources[0], quants[node.inputs[0]]), *sources[1:]]
        made = self._dense(sources, node)
        # A mean is computed from the sums and stored as floats.
        if self.is_mean:
            return made
        if self.kernel is ConvKernel.LISTS_I8:
            return quantized(made, quants[node.name])
        return as_fp16(made) if self.kernel is ConvKernel.LISTS_F16 else made

    def _dense(self, sources: Sequence[Tensor], node: Node) -> Tensor:
        residual = sources[1] if len(sources) > 1 else None
        sums = _convolved(
            sources[0],
            self.weight.factors.to(sources[0].dtype),
            self.window,
            self.groups,
        )
        made = self.epilogue.apply(sums, residual, 1)
        return made if self.pooling is None else self.pooling.apply(made, node.shape)

    def in_dense_torch(self) -> Conv:
        """The operation as one dense torch call: its scale folded into the weights."""
        values = self.weight.times(self.epilogue.scale)
        weight = replace(
            self.weight,
            values=values,
            kind=type(self.weight.kind).FLOAT,
            row_scale=None,
            table=None,
        )
        return replace(
            self,
            weight=weight,
            epilogue=replace(self.epilogue, scale=None),
            kernel=ConvKernel.TORCH,
        )

    def torch_function(self, node: Node) -> Callable[..., Tensor]:
        """The reference with fewer passes over memory, for an operation that is dense
        in torch.
        """
        weight, bias = self.weight.values, self.epilogue.bias(len(self.weight.values))
        finish = self.epilogue.after_bias(1)
        pooling, shape, window, groups = (
            self.pooling,
            node.shape,
            self.window,
            self.groups,
        )

        def run(x: Tensor, residual: Tensor | None = None) -> Tensor:
            made = finish(_convolved(x, weight, window, groups, bias), residual)
            return made if pooling is None else pooling.apply(made, shape)

        return run

    def emit(self, emitter: Emitter, node: Node) -> int:
        emit = {
            ConvKernel.LISTS_F32: emit_lists,
            ConvKernel.DENSE_F32: emit_dense,
            ConvKernel.LISTS_F16: emit_lists,
            ConvKernel.LISTS_I8: emit_int8_lists,
            ConvKernel.CODES_I8: emit_codes,
            ConvKernel.BITS: emit_bits,
        }[self.kernel]
        return emit(self, emitter, node)

    def describe(self, inputs: tuple[str, ...]) -> list[str]:
        notes = [self.weight.describe(), self.epilogue.describe()]
        if len(inputs) > 1:
            notes.append(f"+ {inputs[1]}")
        if self.pooling is not None:
            notes.append(self.pooling.describe())
        if self.kernel is not ConvKernel.LISTS_F32:
            notes.append(self.kernel.value)
        return notes


@lowers(aten.convolution.default)
def _lower(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    if a["transposed"]:
        return lower_transposed(call, context)
    weight = context.weight(a["weight"])
    dimensions = len(weight.shape) - 2
    if dimensions not in (1, 2):
        raise CannotLower(f"convolutions of {dimensions} dimensions have no kernel")
    context.floats(a["input"], rank=dimensions + 2)
    bias = context.optional(a["bias"], "bias")
    window = Window.of(weight.shape[2:], a["stride"], a["padding"], a["dilation"])
    # The scales of rows are applied to the sums, not to the weights: these stay signs
    # or codes for the kernel.
    epilogue = Epilogue(
        scale=float64_if_given(weight.row_scale),
        shift=float64_if_given(bias),
    )
    op = Conv(
        weight=weight,
        window=window,
        groups=a["groups"],
        parameter=context.parameter(a["weight"]),
        epilogue=epilogue,
    )
    return op, (a["input"].name,)


def _convolved(
    x: Tensor, weight: Tensor, window: Window, groups: int, bias: Tensor | None = None
) -> Tensor:
    if weight.ndim == 3:
        w = window
        return F.conv1d(x, weight, bias, w.stride_w, w.pad_w, w.dilation_w, groups)
    return F.conv2d(
        x, weight, bias, window.stride, window.padding, window.dilation, groups
    )
