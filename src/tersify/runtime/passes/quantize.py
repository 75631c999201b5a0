"""Which layers of a plan may run on int8 activations, and the steps of the values they read and write.

The vectors of a linear layer find their own scale when they come; levels of its table become whole steps of their
largest. What a convolution reads and writes needs fixed steps, from the ranges seen in calibration.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tersify.runtime.ops import Conv, ConvKernel, Linear, LinearKernel
from tersify.runtime.plan import Node, Plan, Quant
from tersify.runtime.reference import run_values
from tersify.runtime.weights import WeightKind

UNSIGNED_HIGH, SIGNED_HIGH = 255, 127
DENSE_FROM = 0.65  # the density from which two bits a weight beat lists on AVX-512 VNNI, about
LEAST_WEIGHTS = 1 << 14  # of a linear layer: rounding what a smaller one reads gains nothing
MAX_FEATURES = 1 << 17  # the highest two bits of a byte are summed 64-fold in 32 bits: 2¹⁷ · 2 · 127 · 64 < 2³¹
MAX_LEVELS = 15  # of a table besides zero
MAX_TABLE_FEATURES = 1 << 16  # a level of −127..127 lies as 1..255: 2¹⁶ · 255 · 127 < 2³¹
MAX_TAPS = 128  # one input channel's window must fit a 16-bit sum: 128 · 255 < 2¹⁵


def with_int8_kernels(plan: Plan) -> Plan:
    """Layers of few levels on int8 kernels; every other node stays as it is."""
    return replace(plan, nodes=tuple(_marked(node) for node in plan.nodes))


def quantized_values(plan: Plan) -> set[str]:
    """The values that must have fixed steps."""
    touched: set[str] = set()
    for node in plan.nodes:
        kernel = node.op.kernel if isinstance(node.op, Conv) else None
        if kernel is ConvKernel.TWO_BIT_I8:
            touched.add(node.inputs[0])
        elif kernel is ConvKernel.LISTS_I8:
            touched.update((node.name, *node.inputs))
    return touched


def observed(batches: Iterable[tuple[Plan, Sequence[Tensor]]]) -> dict[str, Quant]:
    """The steps of every float value over all batches. The plans are those of the batches' sizes, in fp32.

    Only convolutions need them: nothing runs for a network without one that could be int8.
    """
    low: dict[str, float] = {}
    high: dict[str, float] = {}
    with torch.no_grad():
        for plan, inputs in batches:
            if not any(isinstance(node.op, Conv) and can_be_int8(node.op) for node in plan.nodes):
                continue
            for name, value in run_values(plan, inputs).items():
                if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
                    low[name] = min(low.get(name, 0.0), float(value.min()))
                    high[name] = max(high.get(name, 0.0), float(value.max()))
    return {name: _quant(low[name], high[name]) for name in low}


def with_two_bit_convolutions(plan: Plan) -> Plan:
    """Convolutions with few zeros on two bits a weight."""

    def chosen(node: Node) -> Node:
        op = node.op
        if not isinstance(op, Conv) or not can_be_two_bit(op) or op.weight.density < DENSE_FROM:
            return node
        return replace(node, op=replace(op, kernel=ConvKernel.TWO_BIT_I8))

    return replace(plan, nodes=tuple(chosen(node) for node in plan.nodes))


def _marked(node: Node) -> Node:
    op = node.op
    if isinstance(op, Conv) and op.kernel is ConvKernel.LISTS_F32 and can_be_int8(op):
        return replace(node, op=replace(op, kernel=ConvKernel.LISTS_I8))
    if isinstance(op, Linear) and op.kernel is LinearKernel.F32 and can_round_vectors(op):
        weight = op.weight.in_steps() if op.weight.kind is WeightKind.TABLE else op.weight
        return replace(node, op=replace(op, weight=weight, kernel=LinearKernel.I8))
    return node


def can_round_vectors(op: Linear) -> bool:
    """A linear layer of so few levels that it fits the dense kernels of two and four bits, and whose sums fit too."""
    weight = op.weight
    if weight.values.numel() < LEAST_WEIGHTS:
        return False
    if weight.kind is WeightKind.TABLE:
        return weight.levels <= MAX_LEVELS and weight.shape[1] <= MAX_TABLE_FEATURES
    return weight.kind is WeightKind.SIGN and weight.shape[1] <= MAX_FEATURES


def can_be_two_bit(op: Conv) -> bool:
    fits = op.weight.values[0].numel() <= MAX_FEATURES // 4  # channels may be rounded up to four
    return can_be_int8(op) and op.groups == 1 and fits


def can_be_int8(op: Conv) -> bool:
    return op.weight.kind is WeightKind.SIGN and op.window.taps <= MAX_TAPS


def _quant(low: float, high: float) -> Quant:
    largest = max(-low, high) or 1.0
    if low >= 0:
        return Quant(scale=largest / UNSIGNED_HIGH, low=0, high=UNSIGNED_HIGH)
    return Quant(scale=largest / SIGNED_HIGH, low=-SIGNED_HIGH, high=SIGNED_HIGH)
