"""Transposed convolutions: every phase of the stride is a channel of one plain
convolution, then the phases mix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tersify.runtime.capture.values import Call
from tersify.runtime.epilogue import Epilogue
from tersify.runtime.ops.base import CannotLower, Context, Op, float64
from tersify.runtime.ops.window import Window
from tersify.runtime.weights import DENSE_FROM, Weight

if TYPE_CHECKING:
    from tersify.runtime.engine import Emitter
    from tersify.runtime.plan import Node, Quant


@dataclass(frozen=True, kw_only=True, eq=False)
class TransposedConv(Op):
    """The weight is [channels, outputs, height, width]; a width alone is one of height
    1.
    """

    kind: ClassVar[str] = "transposed conv"
    weight: Weight
    bias: Tensor | None
    stride: tuple[int, int]
    padding: tuple[int, int]
    output_padding: tuple[int, int]

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        x = sources[0]
        wide = x if x.ndim == 4 else x.unsqueeze(2)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        made = F.conv_transpose2d(
            wide,
            self._dense().to(x.dtype),
            bias,
            self.stride,
            self.padding,
            self.output_padding,
        )
        return made.reshape(node.shape)

    def emit(self, emitter: Emitter, node: Node) -> int:
        module, engine, phases = emitter.module, emitter.engine, self._phases()
        rows, channels, taps_h, taps_w = phases.shape
        items, (_, height, width) = emitter.item_of(node.inputs[0])
        # A full convolution per phase: padding by taps − 1 lets every input reach every
        # output that it touches.
        full_h, full_w = height + taps_h - 1, width + taps_w - 1
        window = Window(taps_h, taps_w, 1, 1, taps_h - 1, taps_w - 1)
        dense, space, usual = (
            self.weight.density >= DENSE_FROM,
            emitter.workspace,
            (full_h, full_w),
        )

        def pack() -> Any:
            if dense:
                return module.pack_conv_dense(space, phases, list(window), usual)
            return module.pack_conv(
                space,
                phases,
                list(window),
                1,
                module.ValueKind.FLOAT,
                [],
                module.Lane.F32,
                usual,
            )

        weights = emitter.packed(
            self.weight, (self.kind, self.stride, self.output_padding), pack
        )
        source = engine.view(emitter.source(node), items, (channels, height, width))
        convolve = engine.conv_dense if dense else engine.conv
        sums = convolve(
            source, weights, self._epilogue().in_cpp(module, rows), -1, None
        )
        emitter.belongs_to(node, sums)
        # Each output channel has one row per phase of height and width.
        outputs = rows // (self.stride[0] * self.stride[1])
        return int(self._mixed(emitter, node, sums, (outputs, full_h, full_w)))

    def _mixed(
        self, emitter: Emitter, node: Node, sums: int, sizes: tuple[int, int, int]
    ) -> int:
        """[outputs, phase of height, phase of width, full height, full width] → the
        places where they belong, cropped.

        What lies behind the last product (an output padding) is the bias alone, which
        the sums hold where no tap fits.
        """
        engine, (outputs, full_h, full_w) = emitter.engine, sizes
        (step_h, step_w), plane = self.stride, full_h * full_w
        # (size, first place read, behind the last, stride in the source). Position y of
        # the result is full position y // step of phase y % step.
        whole = [
            (outputs, 0, outputs, step_h * step_w * plane),
            (full_h, 0, full_h, full_w),
            (step_h, 0, step_h, step_w * plane),
            (full_w, 0, full_w, 1),
            (step_w, 0, step_w, plane),
        ]
        tall, wide = full_h * step_h, full_w * step_w
        mixed = engine.move(sums, (outputs, tall, wide), whole, 0, 0.0)
        emitter.belongs_to(node, mixed)
        _, (_, height, width) = emitter.item_of_shape(node.shape)
        # The crop starts at `padding` rows and columns, in numbers of the source.
        axes = [
            (outputs, 0, outputs, tall * wide),
            (height, 0, height, wide),
            (width, 0, width, 1),
        ]
        return int(
            engine.move(
                mixed,
                (outputs, height, width),
                axes,
                self.padding[0] * wide + self.padding[1],
                0.0,
            )
        )

    def _epilogue(self) -> Epilogue:
        if self.bias is None:
            return Epilogue()
        return Epilogue(
            shift=float64(self.bias).repeat_interleave(self.stride[0] * self.stride[1])
        )

    def _dense(self) -> Tensor:
        values = self.weight.factors
        if self.weight.row_scale is not None:
            # Axis 0 of this weight holds input channels, so their scales cannot be
            # applied to the sums and go into the values.
            values = values * self.weight.row_scale.reshape(
                -1, *[1] * (values.ndim - 1)
            )
        return values if values.ndim == 4 else values.unsqueeze(2)

    def _phases(self) -> Tensor:
        """[outputs · phases, channels, taps]: phase i of a stride s holds the taps i, i
        + s, …, the last one first.
        """
        values = self._dense()
        (step_h, step_w), (height, width) = self.stride, values.shape[2:]
        # Every phase has the same number of taps, so the weight is padded with zeros to
        # a multiple of the stride.
        taps_h, taps_w = (
            -(-height // step_h) + self._behind(0),
            -(-width // step_w) + self._behind(1),
        )
        padded = F.pad(
            values, (0, taps_w * step_w - width, 0, taps_h * step_h - height)
        )
        # A transposed convolution adds tap k of input i at i · stride + k. As a plain
        # convolution it reads its taps in reverse, hence the flip.
        parts = padded.reshape(*padded.shape[:2], taps_h, step_h, taps_w, step_w)
        return parts.permute(1, 3, 5, 0, 2, 4).flip(4, 5).flatten(0, 2).contiguous()

    def _behind(self, axis: int) -> int:
        """Taps of zeros, so that an output padding has sums to read."""
        return -(-self.output_padding[axis] // self.stride[axis])


def lower_transposed(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    weight = context.weight(a["weight"])
    dimensions = len(weight.shape) - 2
    if (
        dimensions not in (1, 2)
        or a["groups"] != 1
        or any(d != 1 for d in a["dilation"])
    ):
        raise CannotLower(
            "transposed convolutions with groups or dilations have no kernel"
        )
    context.floats(a["input"], rank=dimensions + 2)
    bias = context.optional(a["bias"], "bias")

    def pair(values: Sequence[int], missing: int) -> tuple[int, int]:
        # A signal is an image of height 1: stride 1, no padding along its height.
        return (values[0], values[1]) if dimensions == 2 else (missing, values[0])

    op = TransposedConv(
        weight=weight,
        bias=None if bias is None else bias.to(torch.float32),
        stride=pair(a["stride"], 1),
        padding=pair(a["padding"], 0),
        output_padding=pair(a["output_padding"], 0),
    )
    return op, (a["input"].name,)
