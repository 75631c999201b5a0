"""Rewrites a shortcut that only drops positions and adds channels of zeros as a
convolution, so that its values keep the layout of the convolutions around it.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from tersify.runtime.ops import Conv, ConvKernel, Move, Window
from tersify.runtime.ops.move import Axis
from tersify.runtime.passes.fuse import fuse
from tersify.runtime.plan import Node, Plan
from tersify.runtime.weights import Weight, WeightKind


def with_shortcuts_as_convolutions(plan: Plan) -> Plan:
    """ResNets' option A: `pad(x[:, :, ::2, ::2])` behind a convolution in floats; the
    sum that follows takes it in. Kernels are chosen by then, and it takes the one of the
    convolution that it reads.
    """
    nodes: dict[str, Node] = {}
    for node in plan.nodes:
        # Worth it only behind a convolution that writes channels in lanes: a move would
        # have to undo that layout, whereas a convolution reads it as it is.
        source = nodes.get(node.inputs[0]) if isinstance(node.op, Move) else None
        kernel = None if source is None else _in_lanes(source)
        if kernel is not None and isinstance(node.op, Move):
            shortcut = _as_convolution(node.op)
            if shortcut is not None:
                node = replace(node, op=replace(shortcut, kernel=kernel))
        nodes[node.name] = node
    changed = replace(plan, nodes=tuple(nodes.values()))
    # A second fusion lets the new convolution take the residual addition behind it.
    return plan if changed.nodes == plan.nodes else fuse(changed)


def _in_lanes(node: Node) -> ConvKernel | None:
    """The kernel of a convolution in floats whose layout a shortcut can keep."""
    kernel = node.op.kernel if isinstance(node.op, Conv) else None
    return kernel if kernel in (ConvKernel.LISTS_F32, ConvKernel.DENSE_F32) else None


def _as_convolution(move: Move) -> Conv | None:
    """A 1×1 convolution that takes every step-th position, and puts each channel where
    the move puts it; None where the move does more.
    """
    # Only slices and zero padding of [N, C, H, W] with the axes in place.
    is_in_order = [axis.source for axis in move.axes] == [0, 1, 2, 3]
    if not is_in_order or move.fixed or move.fill != 0.0:
        return None
    batch, channels, *places = move.axes
    heights_and_widths = zip(places, move.source_shape[2:], strict=True)
    # The loop below writes a shifted diagonal: a copy of consecutive channels.
    if not _is_whole(batch, move.source_shape[0]) or channels.step != 1:
        return None
    if not all(_is_strided(axis, size) for axis, size in heights_and_widths):
        return None
    # [outputs, inputs, 1, 1] with a single 1 per copied channel. Rows outside low..high
    # stay zero: these are the channels that the move fills.
    values = torch.zeros(channels.size, move.source_shape[1], 1, 1)
    for place in range(channels.low, channels.high):
        values[place, channels.start + place] = 1.0
    # A move that only fills needs no product at all.
    if not bool(values.any()):
        return None
    weight = Weight(kind=WeightKind.SIGN, values=values)
    steps = [axis.step for axis in places]
    return Conv(weight=weight, window=Window(1, 1, *steps), groups=1)


def _is_whole(axis: Axis, size: int) -> bool:
    """Whether the axis is passed on as it is."""
    if axis.is_filled or axis.start != 0:
        return False
    return axis.step == 1 and axis.size == size


def _is_strided(axis: Axis, size: int) -> bool:
    """Whether the axis is `[::step]` of all its positions, as a convolution takes them."""
    if axis.is_filled or axis.start != 0 or axis.step < 1:
        return False
    # A convolution without padding gives ceil(size / step) positions for a 1×1 window.
    return axis.size == -(-size // axis.step)
