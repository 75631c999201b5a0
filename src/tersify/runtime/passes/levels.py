"""Layers whose inputs were quantized in training: the rounding as one operation, and
products of whole numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from tersify.runtime.capture.values import Ref
from tersify.runtime.epilogue import Activation, Epilogue
from tersify.runtime.ops import (
    Conv,
    ConvKernel,
    Elementwise,
    Levels,
    Linear,
    LinearKernel,
    TorchCall,
)
from tersify.runtime.passes.quantize import can_be_int8
from tersify.runtime.plan import Node, Plan, Quant
from tersify.runtime.weights import WeightKind

aten = torch.ops.aten
Nodes = Mapping[str, Node]
MOST = 255  # of bytes without a sign; with one 127 up and down


def with_levels(plan: Plan) -> Plan:
    """Rounding, which torch computes in several steps, as one operation."""
    nodes: dict[str, Node] = {}
    for node in plan.nodes:
        found = _uniform(node, nodes) or _signs(node, nodes, plan)
        nodes[node.name] = node if found is None else found
    return replace(plan, nodes=tuple(nodes.values())).live()


def _uniform(node: Node, nodes: Nodes) -> Node | None:
    """round(x / scale).clamp(low, high) · scale."""
    scale = _factor(node)
    clamp = nodes.get(node.inputs[0]) if scale is not None else None
    if scale is None or clamp is None or not _clamps(clamp):
        return None
    rounding = nodes.get(clamp.inputs[0])
    if rounding is None or not _calls(rounding, aten.round.default):
        return None
    divided = nodes.get(rounding.inputs[0])
    # The division was lowered to a product with the inverse.
    if divided is None or _factor(divided) != 1.0 / scale:
        return None
    assert isinstance(clamp.op, Elementwise)
    low, high = clamp.op.epilogue.low, clamp.op.epilogue.high
    if not _fits_bytes(low, high):
        return None
    covers = node.covers | clamp.covers | rounding.covers | divided.covers
    quant = Quant(scale=scale, low=int(low), high=int(high))
    return replace(
        node, op=Levels(quant=quant), inputs=divided.inputs, covers=covers, reason=""
    )


def _fits_bytes(low: float, high: float) -> bool:
    whole = float(low).is_integer() and float(high).is_integer()
    return whole and (
        (low == 0 and 0 < high <= MOST) or (low < 0 <= high and max(-low, high) <= 127)
    )


def _factor(node: Node) -> float | None:
    """What a node multiplies its only input with; None where it does anything else."""
    epilogue = _epilogue(node)
    if epilogue is None or epilogue.activates or epilogue.shift is not None:
        return None
    if epilogue.scale is None:
        return 1.0
    return float(epilogue.scale) if epilogue.scale.numel() == 1 else None


def _clamps(node: Node) -> bool:
    epilogue = _epilogue(node)
    return (
        epilogue is not None
        and epilogue.activation is Activation.CLAMP
        and not epilogue.is_affine
    )


def _epilogue(node: Node) -> Epilogue | None:
    """What a node does with its only input number by number, in one affine map."""
    op = node.op
    if not isinstance(op, Elementwise) or len(node.inputs) != 1:
        return None
    return None if op.epilogue.is_affine_after_residual else op.epilogue


def _calls(node: Node, target: Any) -> bool:
    op = node.op
    # `round` to decimals is another overload.
    return isinstance(op, TorchCall) and op.target is target


def _signs(node: Node, nodes: Nodes, plan: Plan) -> Node | None:
    """where(x >= 0, 1, -1)."""
    if not _calls(node, aten.where.self):
        return None
    assert isinstance(node.op, TorchCall)
    given = node.op.args
    if not all(type(arg) is Ref for arg in given) or [
        _number(arg, plan) for arg in given[1:]
    ] != [1.0, -1.0]:
        return None
    asked = nodes.get(given[0].name)
    if asked is None or not _calls(asked, aten.ge.Scalar):
        return None
    assert isinstance(asked.op, TorchCall)
    if asked.op.args[1] != 0 or asked.shape != node.shape or not node.shape:
        return None
    source = asked.op.args[0]
    if node.value.dtype != torch.float32 or not _is_float32(source.name, plan):
        return None
    return replace(
        node,
        op=Levels(quant=None),
        inputs=(source.name,),
        covers=node.covers | asked.covers,
        reason="",
    )


def _number(given: Ref, plan: Plan) -> float | None:
    constant = plan.constants.get(given.name)
    return None if constant is None or constant.numel() != 1 else float(constant)


def _is_float32(name: str, plan: Plan) -> bool:
    value = plan.values().get(name)
    return value is not None and value.dtype == torch.float32


def with_level_kernels(plan: Plan) -> Plan:
    """What may be computed with whole numbers knows its levels; two or three of them
    and signs are products of bits.
    """
    nodes, after = _nodes_and_rounding(plan)
    readers = plan.readers()
    return plan.with_each(lambda node: _marked(node, nodes, readers, after))


def _nodes_and_rounding(plan: Plan) -> tuple[Nodes, Nodes]:
    """Every node by its name, and every rounding by the value that it rounds."""
    roundings = [node for node in plan.nodes if isinstance(node.op, Levels)]
    return (
        {node.name: node for node in plan.nodes},
        {node.inputs[0]: node for node in roundings},
    )


def _marked(node: Node, nodes: Nodes, readers: Mapping[str, int], after: Nodes) -> Node:
    op = node.op
    source = nodes.get(node.inputs[0]) if isinstance(op, (Conv, Linear)) else None
    if source is None or not isinstance(source.op, Levels):
        return node
    assert isinstance(op, (Conv, Linear))
    # A second input is the residual, which must not be read through the levels.
    if source.name in node.inputs[1:]:
        return node
    levels = source.op
    if op.weight.kind is WeightKind.SIGN and levels.fits_bits:
        return replace(node, op=_in_bits(op, levels))
    if levels.quant is None:
        return node
    if isinstance(op, Linear):
        return replace(node, op=replace(op, levels=levels))
    # One value has one size of steps.
    alone = readers[source.inputs[0]] == 1 and readers[node.name] == 1
    made = _made_levels(node, op, after) if alone else None
    return replace(node, op=replace(op, levels=levels, made_levels=made))


def _in_bits(op: Conv | Linear, levels: Levels) -> Conv | Linear:
    """The layer with the kernel of bits, which has no form for groups."""
    if isinstance(op, Linear):
        return replace(op, levels=levels, kernel=LinearKernel.BITS)
    if op.groups != 1:
        return op
    return replace(op, levels=levels, kernel=ConvKernel.BITS)


def _made_levels(node: Node, op: Conv, after: Nodes) -> Levels | None:
    """The levels to which a convolution may round what it makes: those of the rounding
    behind it, where its kernel can write bytes.
    """
    follower = after.get(node.name)
    if follower is None or len(node.inputs) != 1 or op.is_mean or not can_be_int8(op):
        return None
    assert isinstance(follower.op, Levels)
    # Signs are no steps of a byte.
    return None if follower.op.quant is None else follower.op


def with_levels_inside(plan: Plan) -> Plan:
    """Kernels of whole numbers round what they read themselves; what two of them pass
    on to each other stays in bytes.
    """
    nodes, after = _nodes_and_rounding(plan)
    quants = dict(plan.quants)
    made: list[Node] = []
    for node in plan.nodes:
        op = node.op
        if isinstance(op, (Conv, Linear)) and op.levels is not None and op.in_levels:
            source = nodes[node.inputs[0]]
            covers = node.covers | source.covers
            if isinstance(op, Conv) and op.kernel is ConvKernel.LISTS_I8:
                assert op.levels.quant is not None
                assert op.made_levels is not None
                assert op.made_levels.quant is not None
                quants[source.inputs[0]] = op.levels.quant
                quants[node.name] = op.made_levels.quant
                covers |= after[node.name].covers
            node = replace(
                node, inputs=(source.inputs[0], *node.inputs[1:]), covers=covers
            )
        made.append(node)
    return replace(plan, nodes=tuple(made), quants=quants).live()
