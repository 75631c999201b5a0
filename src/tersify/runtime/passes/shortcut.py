"""A shortcut that only drops positions and adds channels of zeros, as a convolution: it
then stays in lanes.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from tersify.runtime.ops import Conv, ConvKernel, Move, Window
from tersify.runtime.passes.fuse import fuse
from tersify.runtime.plan import Node, Plan
from tersify.runtime.weights import Weight, WeightKind


def with_shortcuts_as_convolutions(plan: Plan) -> Plan:
    """ResNets' option A: `pad(x[:, :, ::2, ::2])` behind a convolution in floats; the
    sum that follows takes it in.
    """
    nodes: dict[str, Node] = {}
    for node in plan.nodes:
        source = nodes.get(node.inputs[0]) if isinstance(node.op, Move) else None
        if source is not None and isinstance(node.op, Move) and _in_lanes(source):
            shortcut = _as_convolution(node.op)
            node = node if shortcut is None else replace(node, op=shortcut)
        nodes[node.name] = node
    changed = replace(plan, nodes=tuple(nodes.values()))
    return plan if changed.nodes == plan.nodes else fuse(changed)


def _in_lanes(node: Node) -> bool:
    return isinstance(node.op, Conv) and node.op.kernel in (
        ConvKernel.LISTS_F32,
        ConvKernel.DENSE_F32,
    )


def _as_convolution(move: Move) -> Conv | None:
    if (
        len(move.axes) != 4
        or move.fixed
        or move.fill != 0.0
        or [axis.source for axis in move.axes] != [0, 1, 2, 3]
    ):
        return None
    batch, channels, *places = move.axes
    whole = (
        not batch.is_filled
        and batch.start == 0
        and batch.step == 1
        and batch.size == move.source_shape[0]
    )
    steps = [axis.step for axis in places]
    kept = all(
        axis.start == 0
        and not axis.is_filled
        and axis.step > 0
        and axis.size == -(-size // axis.step)
        for axis, size in zip(places, move.source_shape[2:], strict=True)
    )
    if not whole or not kept or channels.step != 1:
        return None
    values = torch.zeros(channels.size, move.source_shape[1], 1, 1)
    for place in range(channels.low, channels.high):
        values[place, channels.start + place] = 1.0
    if not bool(values.any()):
        return None
    weight = Weight(kind=WeightKind.SIGN, values=values)
    return Conv(weight=weight, window=Window(1, 1, *steps), groups=1)
