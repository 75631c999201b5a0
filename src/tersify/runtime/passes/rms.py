"""RMS norms, which torch computes in five steps, as one operation: x · rsqrt(mean(x²) +
eps) · weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from tersify.runtime.ops import (
    AverageOfAxes,
    Elementwise,
    GlobalAverage,
    LayerNorm,
    TorchCall,
    WithConstant,
)
from tersify.runtime.plan import Node, Plan

aten = torch.ops.aten
Nodes = Mapping[str, Node]


def with_rms_norms(plan: Plan) -> Plan:
    """The plan with such norms as one node each. A step that another node reads as well
    stays in the plan beside it.
    """
    nodes: dict[str, Node] = {}
    readers = plan.readers()
    for node in plan.nodes:
        # A step that only the norm reads becomes unread here, and `live` removes it.
        found = _norm(node, nodes) or _weighted(node, nodes, readers)
        nodes[node.name] = node if found is None else found
    return replace(plan, nodes=tuple(nodes.values())).live()


def _norm(node: Node, nodes: Nodes) -> Node | None:
    """A value times the inverse root of the mean of its squares."""
    if not _scales_rows(node):
        return None
    # From the product backwards: x · rsqrt(mean(x²) + eps). Each step must be the plain
    # operation, otherwise the pattern is something else.
    value, inverse = node.inputs
    root = nodes.get(inverse)
    if root is None or _target(root) is not aten.rsqrt.default:
        return None
    eps, summed = _shifted(root, nodes)
    mean = nodes.get(summed)
    if eps is None or mean is None or not _is_mean_of_last(mean, node):
        return None
    squares = nodes.get(mean.inputs[0])
    if squares is None or not _squares(squares, value):
        return None
    covers = node.covers | root.covers | mean.covers | squares.covers
    op = LayerNorm(weight=None, bias=None, eps=eps, centred=False)
    return replace(node, op=op, inputs=(value,), covers=covers, reason="")


def _scales_rows(node: Node) -> bool:
    """Whether it is a plain product with one number for each row."""
    op = node.op
    if not isinstance(op, Elementwise) or not op.multiply or op.epilogue.changes:
        return False
    # […, 1] beside […, features]: one factor per row.
    return len(node.inputs) == 2 and op.narrow == (*node.shape[:-1], 1)


def _weighted(node: Node, nodes: Nodes, readers: Mapping[str, int]) -> Node | None:
    """A norm's weight behind it becomes its own."""
    op = node.op
    norm = (
        nodes.get(node.inputs[0])
        if isinstance(op, WithConstant) and op.multiply
        else None
    )
    if (
        norm is None
        or not isinstance(norm.op, LayerNorm)
        # A second factor behind a norm that has its weight is not a norm's weight.
        or norm.op.weight is not None
        or norm.op.bias is not None
    ):
        return None
    assert isinstance(op, WithConstant)
    weight = op.along_last_axis()
    if (
        weight is None
        or weight.numel() != node.shape[-1]
        or readers.get(norm.name, 0) != 1
    ):
        return None
    op_with_weight = replace(norm.op, weight=weight.to(torch.float32))
    return replace(
        node, op=op_with_weight, inputs=norm.inputs, covers=node.covers | norm.covers
    )


def _target(node: Node) -> Any:
    return node.op.target if isinstance(node.op, TorchCall) else None


def _shifted(root: Node, nodes: Nodes) -> tuple[float | None, str]:
    """What is added to the mean before its root is taken, and the mean."""
    added = nodes.get(root.inputs[0])
    if added is None:
        return None, ""
    # `x + eps` comes in two forms: as a torch call, or lowered to an epilogue.
    if _target(added) is aten.add.Scalar:
        assert isinstance(added.op, TorchCall)
        plain = len(added.op.args) == 2 and not added.op.kwargs
        return (float(added.op.args[1]), added.inputs[0]) if plain else (None, "")
    # An epilogue with a single shift for all channels, and nothing else, is a plain
    # addition of a number.
    op = added.op
    if (
        not isinstance(op, Elementwise)
        or len(added.inputs) != 1
        or op.epilogue.activates
    ):
        return None, ""
    epilogue = op.epilogue
    if (
        epilogue.scale is not None
        or epilogue.shift is None
        or epilogue.shift.numel() != 1
    ):
        return None, ""
    return float(epilogue.shift), added.inputs[0]


def _is_mean_of_last(mean: Node, node: Node) -> bool:
    if isinstance(mean.op, GlobalAverage):
        # A global average takes the mean over everything behind the channels. That is
        # the last axis alone only in a value of three axes.
        return len(node.shape) == 3 and not mean.op.epilogue.changes
    return isinstance(mean.op, AverageOfAxes) and mean.op.axes == (len(node.shape) - 1,)


def _squares(squares: Node, value: str) -> bool:
    if squares.inputs[0] != value:
        return False
    multiplies = (
        isinstance(squares.op, Elementwise)
        and squares.op.multiply
        and not squares.op.epilogue.is_affine
    )
    return multiplies and squares.inputs == (value, value)
