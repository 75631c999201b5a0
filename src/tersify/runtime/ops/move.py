"""Numbers that move: slices, selections, permutations, paddings and repetitions, as one
map from places to places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from tersify.runtime.capture.values import Call
from tersify.runtime.ops.base import CannotLower, Context, Op, existing, lowers
from tersify.runtime.ops.shapes import View

if TYPE_CHECKING:
    from tersify.runtime.engine import Emitter
    from tersify.runtime.plan import Node, Quant

aten = torch.ops.aten
MAX_AXES = 8


class Axis(NamedTuple):
    """Place i of low..high reads place start + i·step of the source's axis; the others
    are filled.
    """

    size: int
    source: int | None  # None: the same number all along
    start: int = 0
    step: int = 1
    low: int = 0
    high: int = 0

    @classmethod
    def whole(cls, size: int, source: int) -> Axis:
        return cls(size, source, high=size)

    @property
    def is_filled(self) -> bool:
        return (self.low, self.high) != (0, self.size)


@dataclass(frozen=True, kw_only=True, eq=False)
class Move(Op):
    """`fixed` holds the one place that is read of a source's axis which the result does
    not have.
    """

    kind: ClassVar[str] = "move"
    source_shape: tuple[int, ...]
    axes: tuple[Axis, ...]
    fixed: tuple[tuple[int, int], ...] = ()
    fill: float = 0.0

    @property
    def is_filled(self) -> bool:
        return any(axis.is_filled for axis in self.axes)

    @property
    def permutation(self) -> tuple[int, ...] | None:
        """The order of the source's axes, where all of each is read."""
        sizes = self.source_shape
        whole = [
            axis == Axis.whole(sizes[axis.source], axis.source)
            for axis in self.axes
            if axis.source is not None
        ]
        if (
            not all(whole)
            or len(whole) != len(self.axes)
            or len(self.axes) != len(sizes)
        ):
            return None
        return tuple(axis.source for axis in self.axes if axis.source is not None)

    @property
    def strides(self) -> tuple[int, ...]:
        """From one place of each axis to the next, in numbers of the source."""
        steps = _strides(self.source_shape)
        return tuple(
            0 if axis.source is None else steps[axis.source] * axis.step
            for axis in self.axes
        )

    @property
    def offset(self) -> int:
        steps = _strides(self.source_shape)
        starts = sum(
            steps[axis.source] * axis.start
            for axis in self.axes
            if axis.source is not None
        )
        return starts + sum(steps[axis] * place for axis, place in self.fixed)

    @property
    def keeps_order(self) -> bool:
        """The same numbers in the same order: a view."""
        if (
            self.is_filled
            or self.offset
            or math.prod(a.size for a in self.axes) != math.prod(self.source_shape)
        ):
            return False
        # From the last axis on, each stride must be the product of the sizes behind it.
        counted = 1
        for axis, stride in zip(
            reversed(self.axes), reversed(self.strides), strict=True
        ):
            if axis.size > 1 and stride != counted:
                return False
            counted *= axis.size
        return True

    def after(self, first: Move) -> Move | None:
        """This move of what `first` makes, as one; None where that is none."""
        if first.is_filled_at(self.fixed):
            return None
        # One move fills with one number.
        if first.is_filled and self.is_filled and first.fill != self.fill:
            return None
        joined = []
        for axis in self.axes:
            before = None if axis.source is None else first.axes[axis.source]
            one = _joined(axis, before)
            if one is None:
                return None
            joined.append(one)
        return replace(
            self,
            source_shape=first.source_shape,
            axes=tuple(joined),
            fixed=self._fixed_before(first),
            fill=self.fill if self.is_filled else first.fill,
        )

    def _fixed_before(self, first: Move) -> tuple[tuple[int, int], ...]:
        """The places that both moves take of axes that are gone, by the axes of what
        `first` reads.
        """
        fixed = dict(first.fixed)
        for number, place in self.fixed:
            axis = first.axes[number]
            if axis.source is not None:
                fixed[axis.source] = axis.start + place * axis.step
        return tuple(sorted(fixed.items()))

    def is_filled_at(self, places: Sequence[tuple[int, int]]) -> bool:
        return any(
            not self.axes[axis].low <= place < self.axes[axis].high
            for axis, place in places
        )

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        x = sources[0].contiguous()
        made = torch.full([axis.size for axis in self.axes], self.fill, dtype=x.dtype)
        inner = made[tuple(slice(axis.low, axis.high) for axis in self.axes)]
        offset = self.offset + sum(
            s * axis.low for s, axis in zip(self.strides, self.axes, strict=True)
        )
        if inner.numel():
            inner.copy_(
                _flipped(x, inner.shape, self.strides, int(x.storage_offset()) + offset)
            )
        return made

    def emit(self, emitter: Emitter, node: Node) -> int:
        items, _ = emitter.item_of_shape(self.source_shape)
        numel = math.prod(self.source_shape) // items
        axes = [
            (a.size, a.low, a.high, s)
            for a, s in zip(self.axes, self.strides, strict=True)
        ]
        source = emitter.source(node)
        if (
            len(axes) > 1
            and axes[0] == (items, 0, items, numel)
            and self.axes[0].start == 0
        ):
            _, shape = emitter.item_of_shape(node.shape)
            return emitter.engine.move(source, shape, axes[1:], self.offset, self.fill)
        # Items are mixed: the whole batch is one item of the engine here.
        whole = emitter.engine.view(source, 1, (1, 1, math.prod(self.source_shape)))
        return emitter.engine.move(
            whole, (1, 1, math.prod(node.shape)), axes, self.offset, self.fill
        )


def _joined(axis: Axis, first: Axis | None) -> Axis | None:
    """An axis of a move whose source is an axis of another; the places must run
    upwards.
    """
    if first is None:
        return axis
    if first.source is None:
        return (
            axis._replace(source=None, start=0, step=1) if not first.is_filled else None
        )
    low, high = axis.low, axis.high
    if first.is_filled:
        if axis.step < 1:
            return None
        # What the first move filled stays filled. Rounding up finds the first place
        # inside, and the first one behind.
        low = max(low, -(-(first.low - axis.start) // axis.step))
        high = max(low, min(high, -(-(first.high - axis.start) // axis.step)))
    start = first.start + axis.start * first.step
    return axis._replace(
        source=first.source,
        start=start,
        step=axis.step * first.step,
        low=low,
        high=high,
    )


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def _flipped(
    x: Tensor, sizes: Sequence[int], strides: Sequence[int], offset: int
) -> Tensor:
    """`as_strided`, which takes no negative strides."""
    down = [i for i, stride in enumerate(strides) if stride < 0]
    # Start at the lowest address and reverse afterwards.
    offset += sum(strides[i] * (sizes[i] - 1) for i in down)
    return x.as_strided(list(sizes), [abs(s) for s in strides], offset).flip(down)


def _whole(shape: Sequence[int]) -> list[Axis]:
    return [Axis.whole(size, i) for i, size in enumerate(shape)]


def _move(
    context: Context, source: Any, axes: list[Axis], **more: Any
) -> tuple[Op, tuple[str, ...]]:
    shape = context.floats(source)
    if not 1 <= len(axes) <= MAX_AXES or 0 in (axis.size for axis in axes):
        raise CannotLower(
            "the kernel moves tensors of one to eight axes that are not empty"
        )
    move = Move(source_shape=tuple(shape), axes=tuple(axes), **more)
    return (View() if move.keeps_order else move), (source.name,)


@lowers(aten.slice.Tensor)
def _lower_slice(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    shape = context.floats(a["self"])
    if not shape:
        raise CannotLower("a number has no slices")
    axis = a["dim"] % len(shape)
    start, stop, step = slice(a["start"], a["end"], a["step"]).indices(shape[axis])
    axes = _whole(shape)
    size = len(range(start, stop, step))
    axes[axis] = Axis(size, axis, start, step, 0, size)
    return _move(context, a["self"], axes)


@lowers(aten.select.int)
def _lower_select(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    shape = context.floats(a["self"])
    axis = a["dim"] % max(len(shape), 1)
    axes = [one for one in _whole(shape) if one.source != axis]
    return _move(context, a["self"], axes, fixed=((axis, a["index"] % shape[axis]),))


@lowers(aten.permute.default)
def _lower_permute(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    shape = context.floats(a["self"])
    return _move(
        context,
        a["self"],
        [Axis.whole(shape[i % len(shape)], i % len(shape)) for i in a["dims"]],
    )


@lowers(aten.transpose.int)
def _lower_transpose(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    axes = _whole(context.floats(a["self"]))
    if axes:
        one, other = (a[name] % len(axes) for name in ("dim0", "dim1"))
        axes[one], axes[other] = axes[other], axes[one]
    return _move(context, a["self"], axes)


@lowers(aten.t.default)
def _lower_t(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    return _move(context, call.args[0], _whole(context.floats(call.args[0]))[::-1])


@lowers(*existing(aten.flip, "default"))
def _lower_flip(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    axes = _whole(context.floats(a["self"]))
    for axis in a["dims"]:
        size = axes[axis].size
        axes[axis] = Axis(size, axis % len(axes), size - 1, -1, 0, size)
    return _move(context, a["self"], axes)


@lowers(aten.expand.default)
def _lower_expand(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    shape = context.floats(a["self"])
    made = context.graph.values[call.results[0]].shape
    return _move(context, a["self"], expanded(shape, made))


def expanded(shape: Sequence[int], wanted: Sequence[int]) -> list[Axis]:
    """A shape repeated to a wider one, as torch broadcasts."""
    axes, more = [], len(wanted) - len(shape)
    for i, size in enumerate(wanted):
        own = shape[i - more] if i >= more else 1
        axes.append(
            Axis.whole(size, i - more)
            if own == size and i >= more
            else Axis(size, None, high=size)
        )
    return axes


@lowers(aten.constant_pad_nd.default)
def _lower_pad(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    shape = context.floats(a["self"])
    if not math.isfinite(a["value"]):
        raise CannotLower("it pads with what is not finite")
    axes = _whole(shape)
    # torch lists pads from the last axis to the first. A negative pad crops.
    for i in range(len(a["pad"]) // 2):
        before, behind = a["pad"][2 * i : 2 * i + 2]
        axis = len(shape) - 1 - i
        size = shape[axis] + before + behind
        low = max(before, 0)
        axes[axis] = Axis(
            size, axis, -before, 1, low, max(low, min(size, before + shape[axis]))
        )
    return _move(context, a["self"], axes, fill=float(a["value"]))
