"""Pools: maxima and averages of windows, and the global average."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tersify.runtime.capture.values import Call, Ref
from tersify.runtime.epilogue import Epilogue
from tersify.runtime.ops.base import CannotLower, Context, Op, lowers
from tersify.runtime.ops.window import Window

if TYPE_CHECKING:
    from tersify.runtime.engine import Emitter
    from tersify.runtime.plan import Node, Quant

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True, eq=False)
class MaxPool(Op):
    """`ceil`: the output may have one row or column more than whole windows fill."""

    kind: ClassVar[str] = "max pool"
    window: Window
    ceil: bool = False

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        w = self.window
        return F.max_pool2d(
            sources[0], w.kernel, w.stride, w.padding, w.dilation, ceil_mode=self.ceil
        )

    def emit(self, emitter: Emitter, node: Node) -> int:
        return emitter.engine.max_pool(
            emitter.source(node), list(self.window), node.shape[2:]
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class AveragePool(Op):
    kind: ClassVar[str] = "average pool"
    window: Window
    count_padding: bool = True

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        w = self.window
        return F.avg_pool2d(
            sources[0],
            w.kernel,
            w.stride,
            w.padding,
            count_include_pad=self.count_padding,
        )

    def emit(self, emitter: Emitter, node: Node) -> int:
        window = list(self.window)
        return emitter.engine.avg_pool(
            emitter.source(node), window, node.shape[2:], self.count_padding
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class GlobalAverage(Op):
    """The mean over all positions of a channel."""

    kind: ClassVar[str] = "global average"
    epilogue: Epilogue = field(default_factory=Epilogue)

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        means = self.epilogue.apply(sources[0].flatten(2).mean(2), None, 1)
        return means.reshape(node.shape)

    def emit(self, emitter: Emitter, node: Node) -> int:
        epilogue = self.epilogue.in_cpp(emitter.module, node.shape[1])
        return emitter.engine.global_mean(emitter.source(node), epilogue)

    def describe(self, inputs: tuple[str, ...]) -> list[str]:
        return [self.epilogue.describe()]


@dataclass(frozen=True, kw_only=True, eq=False)
class AverageOfAxes(Op):
    """The mean over some axes of an item, channels or not."""

    kind: ClassVar[str] = "average of axes"
    source_shape: tuple[int, ...]
    axes: tuple[int, ...]

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        return sources[0].mean(self.axes).reshape(node.shape)

    def emit(self, emitter: Emitter, node: Node) -> int:
        # What stays moves to the front and counts as channels, the rest as positions.
        rank = len(self.source_shape)
        kept = [axis for axis in range(1, rank) if axis not in self.axes]
        strides = [math.prod(self.source_shape[axis + 1 :]) for axis in range(rank)]
        size = self.source_shape
        order = [(size[a], 0, size[a], strides[a]) for a in (*kept, *self.axes)]
        channels = math.prod(size[axis] for axis in kept)
        positions = math.prod(size[axis] for axis in self.axes)
        moved = emitter.engine.move(
            emitter.source(node), (channels, positions, 1), order, 0, 0.0
        )
        plain = Epilogue().in_cpp(emitter.module, channels)
        means = emitter.engine.global_mean(moved, plain)
        return emitter.engine.view(means, *emitter.item_of_shape(node.shape))


@lowers(aten.max_pool2d_with_indices.default)
def _lower_max(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    context.only_first_result(call)
    context.floats(a["self"], rank=4)
    kernel = _two(a["kernel_size"])
    window = Window.of(
        kernel, _two(a["stride"]) or kernel, _two(a["padding"]), _two(a["dilation"])
    )
    return MaxPool(window=window, ceil=a["ceil_mode"]), (a["self"].name,)


@lowers(aten.avg_pool2d.default)
def _lower_average(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    if a["divisor_override"] is not None:
        raise CannotLower("averages with divisor_override have no kernel")
    shape = context.floats(a["self"], rank=4)
    # torch takes an empty stride for "as large as the window".
    kernel = _two(a["kernel_size"])
    window = Window.of(kernel, _two(a["stride"]) or kernel, _two(a["padding"]), (1, 1))
    made = context.graph.values[call.results[0]].shape
    if a["ceil_mode"] and made[2:] != window.whole_windows(shape[2:]):
        raise CannotLower("averages of windows beyond the image have no kernel")
    return AveragePool(window=window, count_padding=a["count_include_pad"]), (
        a["self"].name,
    )


@lowers(aten._adaptive_avg_pool2d.default)
def _lower_adaptive(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    shape = context.floats(a["self"], rank=4)
    wanted = context.graph.values[call.results[0]].shape
    # One window over everything.
    if wanted[2:] == (1, 1):
        return GlobalAverage(), (a["self"].name,)
    # torch's adaptive windows overlap or differ in size unless the sizes divide.
    if shape[2] % wanted[2] or shape[3] % wanted[3]:
        raise CannotLower("its windows have different sizes")
    kernel = (shape[2] // wanted[2], shape[3] // wanted[3])
    return AveragePool(window=Window.of(kernel, kernel, (0, 0), (1, 1))), (
        a["self"].name,
    )


@lowers(aten.mean.dim)
def _lower_mean(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    source: Ref = a["self"]
    shape = context.floats(source)
    rank = len(shape)
    # Axes may be negative. A mean over items is no operation of ours.
    axes = sorted(axis % max(rank, 1) for axis in (a["dim"] or []))
    if rank < 2 or not axes or axes[0] == 0 or a["dtype"] not in (None, torch.float32):
        raise CannotLower("only means of float32 numbers of one item have a kernel")
    if rank > 2 and axes == list(range(2, rank)):
        return GlobalAverage(), (source.name,)
    if len(context.graph.values[call.results[0]].shape) < 2:
        raise CannotLower("it leaves no axis of an item")
    return AverageOfAxes(source_shape=shape, axes=tuple(axes)), (source.name,)


def _two(values: Any) -> tuple[int, ...]:
    return tuple(values) * 2 if len(values) == 1 else tuple(values)
