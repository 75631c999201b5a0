"""Which layers of a plan may run on 8-bit activations, and the scale of every value that needs a fixed one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from tersify.runtime.plan import Node, Plan, Quant
from tersify.runtime.reference import run_values

UNSIGNED_HIGH, SIGNED_HIGH = 255, 127
DENSE_FROM = 0.65  # the density from which two bits a weight beat lists on AVX-512 VNNI, about
MAX_FEATURES = 1 << 17  # the highest two bits of a byte are summed 64-fold in 32 bits: 2¹⁷ · 2 · 127 · 64 < 2³¹
MAX_TAPS = 128  # one input channel's window must fit a 16-bit sum: 128 · 255 < 2¹⁵


def quantize(plan: Plan, calibration: Iterable[tuple[Tensor, ...]], *, only: Collection[str] | None = None) -> Plan:
    """The plan with ternary layers marked "int8" and `quants` for what the convolutions among them read and write.

    The vectors of a linear layer find their own scale when they come; every other node stays as it is.
    `only` names the nodes that may be quantized.
    """
    allowed = {node.name for node in plan.nodes} if only is None else only
    plan = replace(plan, nodes=tuple(_marked(node) if node.name in allowed else node for node in plan.nodes))
    marked = [node for node in plan.nodes if node.name in allowed and can_be_narrow(node)]
    touched = {name for node in marked for name in (node.inputs if node.two_bit else (node.name, *node.reads))}
    if not touched:
        return plan
    low = dict.fromkeys(touched, 0.0)
    high = dict.fromkeys(touched, 0.0)
    with torch.no_grad():
        for batch in calibration:
            values = run_values(plan, batch)
            for name in touched:
                low[name] = min(low[name], float(values[name].min()))
                high[name] = max(high[name], float(values[name].max()))
    return replace(plan, quants={name: _quant(low[name], high[name]) for name in touched})


def with_dense_convolutions(plan: Plan) -> Plan:
    """Convolutions with few zeros marked "two_bit"."""

    def marked(node: Node) -> Node:
        few = can_be_two_bit(node) and node.weight is not None and node.weight.density >= DENSE_FROM
        return replace(node, options={**node.options, "two_bit": True}) if few else node

    return replace(plan, nodes=tuple(marked(node) for node in plan.nodes))


def _marked(node: Node) -> Node:
    if not can_be_narrow(node) and not can_round_vectors(node):
        return node
    return replace(node, options={**node.options, "int8": True})


def can_round_vectors(node: Node) -> bool:
    """A ternary linear layer whose sums fit the dense two-bit kernel."""
    if node.kind != "linear" or node.weight is None or node.weight.kind != "sign":
        return False
    return node.weight.values.shape[1] <= MAX_FEATURES


def can_be_two_bit(node: Node) -> bool:
    if not can_be_narrow(node) or node.options["groups"] != 1 or node.weight is None:
        return False
    return node.weight.values[0].numel() <= MAX_FEATURES // 4  # channels may be rounded up to four


def can_be_narrow(node: Node) -> bool:
    if node.kind != "conv" or node.weight is None or node.weight.kind != "sign":
        return False
    window = node.options["window"]
    return window[0] * window[1] <= MAX_TAPS


def _quant(low: float, high: float) -> Quant:
    largest = max(-low, high) or 1.0
    if low >= 0:
        return Quant(scale=largest / UNSIGNED_HIGH, low=0, high=UNSIGNED_HIGH)
    return Quant(scale=largest / SIGNED_HIGH, low=-SIGNED_HIGH, high=SIGNED_HIGH)
