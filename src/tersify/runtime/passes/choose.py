"""Which kernel runs which layer: the cheapest by the costs measured on this CPU."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tersify.runtime.costs import (
    CALL,
    CONV,
    CONV_KERNELS,
    DENSE,
    ENTERING,
    EXCHANGE,
    FOUR_BIT,
    INT8,
    LANES,
    LEAVING,
    LINEAR_KERNELS,
    ROWS,
    TWO_BIT,
    VECTOR,
    Costs,
)
from tersify.runtime.ops import Conv, ConvKernel, Linear, LinearKernel, View
from tersify.runtime.passes.quantize import (
    ROUNDED,
    can_be_codes,
    can_be_int8,
    can_round_vectors,
)
from tersify.runtime.plan import Node, Plan
from tersify.runtime.weights import Weight, WeightKind

FEW_ROWS = 4  # of a matrix product: these go vector by vector
# of a weight in a list, in positions or rows: reading its entry costs as much as four
# vectors
LEAST_USES = 64
MAX_CODES = 16  # that the kernel for single vectors decodes, zero among them


def choose(plan: Plan, costs: Costs, *, int8: bool) -> Plan:
    """The plan with a kernel for every layer that has none but the default, and every
    choice explained.

    `int8` says whether int8 activations are allowed.
    """
    return plan.with_each(lambda node: _chosen(node, costs, int8))


def _chosen(node: Node, costs: Costs, int8: bool) -> Node:
    op = node.op
    if not isinstance(op, (Conv, Linear)) or op.kernel not in (
        ConvKernel.LISTS_F32,
        LinearKernel.F32,
    ):
        return node
    # A kernel that was chosen before, by the user's precision, is not reconsidered.
    options = predicted(node, op, costs, int8=int8)
    best = min(options, key=options.__getitem__)
    times = ", ".join(
        f"{kernel} {_microseconds(ns)} µs" for kernel, ns in options.items()
    )
    reason = "; ".join(filter(None, (node.reason, f"{best} chosen: {times}")))
    node = replace(node, reason=reason)
    # Every other outcome keeps the op in the engine, with its own kernel.
    if best == DENSE:
        return replace(node, op=op.in_dense_torch())
    if isinstance(op, Conv) and best in CONV_KERNELS:
        weight = op.weight.in_steps() if best == FOUR_BIT else op.weight
        return replace(node, op=replace(op, weight=weight, kernel=CONV_KERNELS[best]))
    if isinstance(op, Linear) and best in LINEAR_KERNELS:
        if best == LANES:
            return replace(node, op=replace(op, kernel=LINEAR_KERNELS[best]))
        # Levels are rounded to whole steps before an integer kernel reads them.
        own = LINEAR_KERNELS[best] if op.levels is None else LinearKernel.LEVELS_I8
        return replace(node, op=replace(op, weight=op.weight.in_steps(), kernel=own))
    return node


def segment_gain(nodes: Sequence[Node], costs: Costs, *, threads: int) -> float:
    """Nanoseconds that one call of the engine for these nodes saves, if its neighbours
    are torch calls.
    """
    # The engine's call is paid once, whereas torch pays a call for every node.
    gain = -costs.nanoseconds[ENTERING]
    for node in nodes:
        if isinstance(node.op, View):
            continue  # torch's views take little time, too
        gain += costs.nanoseconds[CALL]
        if isinstance(node.op, (Conv, Linear)):
            options = dict(
                predicted(node, node.op, costs, int8=node.op.kernel in ROUNDED)
            )
            # `predicted` charges a dense layer for leaving the engine. Here its
            # neighbours are in torch anyway, so that charge does not apply.
            dense = options.pop(DENSE) - _moving(node.op, node, costs)
            gain += (dense - min(options.values())) / threads
    return gain


def predicted(
    node: Node, op: Conv | Linear, costs: Costs, *, int8: bool
) -> Mapping[str, float]:
    """Nanoseconds of the layer by kernel, on one thread."""
    weight = op.weight
    # How often each weight is used: once per output position and item of a
    # convolution, once per row of a matrix product.
    if isinstance(op, Conv):
        sums = op.sums_shape(node)
        shape_class, uses = CONV, sums[0] * math.prod(sums[2:])
        kernels = _conv_kernels(op, int8)
    else:
        uses = math.prod(node.shape[:-1])
        shape_class = VECTOR if uses <= FEW_ROWS else ROWS
        kernels = _linear_kernels(op, shape_class, int8)
    count = weight.values.numel()
    times = {
        kernel: uses * count * costs.of(shape_class, kernel, weight.density)
        for kernel in kernels
    }
    own = kernels[0]
    # The cost per use was measured with many uses. With few, reading the list's entry
    # dominates: the layer costs as much as it would with LEAST_USES.
    if shape_class != VECTOR and uses < LEAST_USES:
        times[own] *= LEAST_USES / uses
        # The engine may also run the rows one by one, with the kernel for vectors.
        if shape_class == ROWS and _can_decode_vectors(weight):
            each = costs.of(VECTOR, own, weight.density)
            times[own] = min(times[own], uses * count * each)
    times[DENSE] += _moving(op, node, costs)
    return times


def _conv_kernels(op: Conv, int8: bool) -> list[str]:
    """What can run a convolution: the lists of its kind of weight come first."""
    kernels = [op.weight.kind.value, DENSE]
    # The dense kernel of the engine has no form for groups.
    if op.groups == 1:
        kernels.append(LANES)
    # What has levels from training may be rounded to these alone.
    if op.made_levels is not None or (int8 and op.levels is None and can_be_int8(op)):
        kernels.append(INT8)
    if can_be_codes(op) and _may_round(op, int8):
        kernels.append(TWO_BIT if op.weight.kind is WeightKind.SIGN else FOUR_BIT)
    return kernels


def _linear_kernels(op: Linear, shape_class: str, int8: bool) -> list[str]:
    """What can run a matrix product: the floats' kernel of its weight comes first."""
    weight = op.weight
    own = weight.kind.value
    # A table of more codes than the kernel for vectors decodes runs as plain floats
    # there.
    is_table = weight.kind is WeightKind.TABLE
    if shape_class == VECTOR and is_table and _codes(weight) > MAX_CODES:
        own = WeightKind.FLOAT.value
    kernels = [own, DENSE, LANES]
    # The four-bit measurement stands for all tables, the int8 one for signs.
    if can_round_vectors(op) and _may_round(op, int8):
        kernels.append(FOUR_BIT if is_table else INT8)
    return kernels


def _may_round(op: Conv | Linear, int8: bool) -> bool:
    """Whether a kernel of whole numbers may round the input: as it was allowed, or to
    the layer's own levels where its weights are whole as well.
    """
    return int8 if op.levels is None else op.weight.is_whole


def _can_decode_vectors(weight: Weight) -> bool:
    """Whether the kernel for single vectors reads the weight as codes."""
    return weight.kind is not WeightKind.FLOAT and _codes(weight) <= MAX_CODES


def _codes(weight: Weight) -> int:
    """How many different codes there are; zero is one of its own where it occurs."""
    return weight.levels + (weight.density < 1)


def _moving(op: Conv | Linear, node: Node, costs: Costs) -> float:
    """What a layer pays for being computed outside the engine."""
    exchanged = (
        _numbers(op, node) * costs.nanoseconds[EXCHANGE]
        if isinstance(op, Conv)
        else 0.0
    )
    return costs.nanoseconds[LEAVING] + exchanged


def _numbers(op: Conv, node: Node) -> float:
    """What a convolution reads and writes."""
    rows, per_group = op.weight.shape[:2]
    # Numbers read for each number written: the input has `stride` times as many
    # positions per axis, and `per_group * groups` channels against `rows`.
    read = per_group * op.groups * op.window.stride_h * op.window.stride_w / rows
    return math.prod(op.sums_shape(node)) * (1 + read)


def _microseconds(nanoseconds: float) -> str:
    return (
        f"{1e-3 * nanoseconds:,.0f}"
        if nanoseconds >= 1e5
        else f"{1e-3 * nanoseconds:.3g}"
    )
