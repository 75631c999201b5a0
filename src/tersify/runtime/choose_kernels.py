"""Which kernel serves which layer: the cheapest by the costs measured on this CPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from tersify.runtime.kernel_costs import CONV, DENSE, EXCHANGE, FOUR_BIT, INT8, LEAVING, ROWS, TWO_BIT, VECTOR, Costs
from tersify.runtime.plan import Finish, Node, Plan
from tersify.runtime.quantize import can_be_narrow, can_be_two_bit, can_round_vectors
from tersify.runtime.weights import Weight

FEW_ROWS = 4  # of a matrix product: these go vector by vector
MAX_TABLE_VECTOR = 15  # levels that the kernel for single vectors decodes


def choose(plan: Plan, batch: int, costs: Costs, *, int8: bool) -> tuple[Plan, frozenset[str]]:
    """The plan with dense layers marked and every choice explained, and the names of those to quantize.

    `int8` says whether 8-bit activations are allowed.
    """
    nodes = []
    quantized = set()
    for node in plan.nodes:
        if node.weight is None or node.kind not in ("conv", "linear"):
            nodes.append(node)
            continue
        options = predicted(node, batch, costs, int8=int8)
        best = min(options, key=options.__getitem__)
        if best in (INT8, TWO_BIT, FOUR_BIT):
            quantized.add(node.name)
            node = replace(node, options={**node.options, "two_bit": best == TWO_BIT})
        times = ", ".join(f"{kernel} {_microseconds(ns)} µs" for kernel, ns in options.items())
        chosen = replace(node, reason=f"{best} chosen: {times}")
        nodes.append(dense(chosen) if best == DENSE else chosen)
    return replace(plan, nodes=tuple(nodes)), frozenset(quantized)


def predicted(node: Node, batch: int, costs: Costs, *, int8: bool) -> Mapping[str, float]:
    """Nanoseconds of the layer by kernel, on one thread."""
    weight = node.weight
    assert weight is not None
    if node.kind == "conv":
        shape_class, uses = CONV, batch * math.prod(node.sums_shape[1:])
    else:
        uses = batch * math.prod(node.shape[:-1])
        shape_class = VECTOR if uses <= FEW_ROWS else ROWS
    kind = weight.kind
    if shape_class == VECTOR and kind == "table" and (weight.table is None or len(weight.table) > MAX_TABLE_VECTOR):
        kind = "float"
    kernels = [kind, DENSE]
    if int8 and (can_be_narrow(node) or can_round_vectors(node)):
        kernels.append(FOUR_BIT if kind == "table" else INT8)
    if int8 and can_be_two_bit(node):
        kernels.append(TWO_BIT)
    products = uses * weight.values.numel()
    times = {kernel: products * costs.of(shape_class, kernel, weight.density) for kernel in kernels}
    times[DENSE] += costs.nanoseconds[LEAVING]
    if node.kind == "conv":
        times[DENSE] += batch * _numbers(node) * costs.nanoseconds[EXCHANGE]
    return times


def _numbers(node: Node) -> float:
    """What a convolution reads and writes for one image."""
    assert node.weight is not None
    rows, per_group = node.weight.values.shape[:2]
    stride_h, stride_w = node.options["window"][2:4]
    read = per_group * node.options["groups"] * stride_h * stride_w / rows
    return math.prod(node.sums_shape) * (1 + read)


def dense(node: Node) -> Node:
    """The node as one dense torch call: its scale folded into plain weights."""
    weight = node.weight
    assert weight is not None
    values = weight.values
    if node.finish.scale is not None:
        scale = node.finish.scale.reshape(-1, *[1] * (values.ndim - 1))
        values = (values.to(torch.float64) * scale).to(torch.float32)
    finish: Finish = replace(node.finish, scale=None)
    return replace(
        node, weight=Weight(kind="float", values=values), finish=finish, options={**node.options, "dense": True}
    )


def _microseconds(nanoseconds: float) -> str:
    return f"{1e-3 * nanoseconds:,.0f}" if nanoseconds >= 1e5 else f"{1e-3 * nanoseconds:.3g}"
