"""Which layers of a plan may run on int8 activations, and the steps of the values they
read and write.

The vectors of a linear layer find their own scale when they come. What a convolution
reads and writes needs fixed steps, from the ranges seen in calibration. Levels of a
table become whole steps, at most 127 up and down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tersify.runtime.ops import Conv, ConvKernel, Linear, LinearKernel
from tersify.runtime.plan import Node, Plan, Quant
from tersify.runtime.reference import run_values
from tersify.runtime.weights import Weight, WeightKind

UNSIGNED_HIGH, SIGNED_HIGH = 255, 127
# The densities from which codes of all weights beat lists of some on AVX-512 VNNI,
# about.
DENSE_FROM = {WeightKind.SIGN: 0.65, WeightKind.TABLE: 0.25}
# of a linear layer: rounding what a smaller one reads gains nothing
LEAST_WEIGHTS = 1 << 14
# the highest two bits of a byte are summed 64-fold in 32 bits: 2¹⁷ · 2 · 127 · 64 < 2³¹
MAX_FEATURES = 1 << 17
# a level of −127..127 lies as 1..255: 2¹⁶ · 255 · 127 < 2³¹
MAX_TABLE_FEATURES = 1 << 16
USES_OF_A_LEVEL = 4  # of a table, on average; fewer are chance
# of the energy of an item, or of a row of weights, that rounding may take: 20 dB below
# the signal. Images and most weights lose a tenth of this; items that differ in
# loudness, and tables with a few large levels, may lose nearly all
MOST_NOISE = 0.01
# kernels that read int8 activations, or fewer bits
ROUNDED = {
    ConvKernel.LISTS_I8,
    ConvKernel.CODES_I8,
    ConvKernel.BITS,
    LinearKernel.I8,
    LinearKernel.LEVELS_I8,
    LinearKernel.BITS,
}
MAX_TAPS = 128  # one input channel's window must fit a 16-bit sum: 128 · 255 < 2¹⁵


def with_int8_kernels(plan: Plan) -> Plan:
    """Layers of few levels on int8 kernels; every other node stays as it is."""
    return plan.with_each(_marked)


def quantized_values(plan: Plan) -> set[str]:
    """The values that must have fixed steps."""
    touched: set[str] = set()
    for node in plan.nodes:
        op = node.op
        # Levels from training are the layer's own.
        kernel = op.kernel if isinstance(op, Conv) and op.levels is None else None
        # Dense codes read int8 and write floats; lists stay in int8 on both sides, the
        # residual included.
        if kernel is ConvKernel.CODES_I8:
            touched.add(node.inputs[0])
        elif kernel is ConvKernel.LISTS_I8:
            touched.update((node.name, *node.inputs))
    return touched


def observed(
    batches: Iterable[tuple[Plan, Sequence[Tensor]]], *, most_noise: float = MOST_NOISE
) -> dict[str, Quant]:
    """The steps of every float value over all batches, but for those whose faint items
    they would drown. The plans are those of the batches' sizes, in fp32.

    Only convolutions need them: nothing runs for a network without one that could be
    int8.
    """
    seen: dict[str, _Seen] = {}
    with torch.no_grad():
        for plan, inputs in batches:
            # Without such a convolution no fixed steps are needed, and running the
            # batches would be in vain.
            if not any(map(_needs_steps, plan.nodes)):
                continue
            for name, value in run_values(plan, inputs).items():
                if (
                    isinstance(value, Tensor)
                    and value.is_floating_point()
                    and value.numel()
                ):
                    seen.setdefault(name, _Seen()).add(value)
    quants = {name: _quant(each.low, each.high) for name, each in seen.items()}
    return {
        name: quant
        for name, quant in quants.items()
        if seen[name].noise(quant.scale) <= most_noise
    }


@dataclass
class _Seen:
    """What a value was in the calibration batches: its range, and how strong each of
    its items was.
    """

    # Every range contains 0, so that zero padding and ReLU's zeros are exact.
    low: float = 0.0
    high: float = 0.0
    energies: list[Tensor] = field(default_factory=list)
    counts: list[Tensor] = field(default_factory=list)  # of numbers that are not zero

    def add(self, value: Tensor) -> None:
        items = value.reshape(len(value) if value.ndim else 1, -1)
        self.low = min(self.low, float(items.min()))
        self.high = max(self.high, float(items.max()))
        self.energies.append(items.double().square().sum(1))
        self.counts.append(items.count_nonzero(1))

    def noise(self, step: float) -> float:
        """The part of an item's energy that rounding to whole steps takes, on average
        over the items: up to a step is spread evenly, and what rounds to zero is lost.
        """
        energies, counts = torch.cat(self.energies), torch.cat(self.counts)
        heard = energies > 0
        if not bool(heard.any()):
            return 0.0
        lost = counts[heard] * (step**2 / 12)
        return float((lost / energies[heard]).clamp(max=1.0).mean())


def with_faint_in_fp32(plan: Plan, quants: Mapping[str, Quant]) -> Plan:
    """Convolutions that would read, or in lists write, values without steps keep
    floats.
    """

    def kept(node: Node) -> Node:
        op = node.op
        # Ranges that were trained are what the network is made for.
        if not isinstance(op, Conv) or op.levels is not None:
            return node
        if not (can_be_int8(op) or can_be_codes(op)):
            return node
        touched = (*node.inputs, node.name) if can_be_int8(op) else node.inputs[:1]
        if all(name in quants for name in touched):
            return node
        why = "float activations: 8 bits would lose the faint ones among its items"
        return replace(node, op=replace(op, in_floats=True), reason=why)

    return plan.with_each(kept)


def with_code_convolutions(plan: Plan) -> Plan:
    """Convolutions with few zeros on dense codes."""

    def chosen(node: Node) -> Node:
        op = node.op
        # Below these densities the lists' kernel reads less than the codes' one.
        if (
            not isinstance(op, Conv)
            or op.levels is not None
            or not can_be_codes(op)
            or op.weight.density < DENSE_FROM[op.weight.kind]
        ):
            return node
        return replace(
            node,
            op=replace(op, weight=op.weight.in_steps(), kernel=ConvKernel.CODES_I8),
        )

    return plan.with_each(chosen)


def _marked(node: Node) -> Node:
    op = node.op
    # What has levels from training is not rounded again.
    if isinstance(op, (Conv, Linear)) and op.levels is not None:
        return node
    # Layers that were given codes by the pass before keep them.
    if isinstance(op, Conv) and op.kernel is ConvKernel.LISTS_F32 and can_be_int8(op):
        return replace(node, op=replace(op, kernel=ConvKernel.LISTS_I8))
    if (
        isinstance(op, Linear)
        and op.kernel is LinearKernel.F32
        and can_round_vectors(op)
    ):
        return replace(
            node, op=replace(op, weight=op.weight.in_steps(), kernel=LinearKernel.I8)
        )
    return node


def rounds(plan: Plan) -> bool:
    """Whether any layer runs on int8 activations."""
    kernels = {
        node.op.kernel for node in plan.nodes if isinstance(node.op, (Conv, Linear))
    }
    return bool(kernels & ROUNDED)


def can_round_vectors(op: Linear) -> bool:
    """A linear layer whose weights are levels, and whose sums fit 32 bits."""
    weight = op.weight
    if weight.values.numel() < LEAST_WEIGHTS:
        return False
    # Sums of a table's steps grow faster than sums of signs.
    if weight.kind is WeightKind.TABLE:
        return _can_round(weight) and weight.shape[1] <= MAX_TABLE_FEATURES
    return weight.kind is WeightKind.SIGN and weight.shape[1] <= MAX_FEATURES


def can_be_codes(op: Conv) -> bool:
    """A convolution whose weights are levels, and whose sums fit 32 bits; channels are
    rounded up to four.
    """
    kind = op.weight.kind
    if op.in_floats:
        return False
    # Products per sum = taps · channels; the limits keep sums within 32 bits.
    most = {WeightKind.SIGN: MAX_FEATURES, WeightKind.TABLE: MAX_TABLE_FEATURES}.get(
        kind, 0
    )
    if kind is WeightKind.TABLE and not _can_round(op.weight):
        return False
    # The int8 dot product adds four channels at a time, so padded channels count.
    return op.groups == 1 and op.window.taps * (-(-op.weight.shape[1] // 4) * 4) <= most


def _can_round(weight: Weight) -> bool:
    """A small layer of plain numbers is a table, too: its numbers must not be rounded.
    Nor must levels of which most are small beside the largest.
    """
    if weight.is_whole:
        return True
    few = weight.levels * USES_OF_A_LEVEL <= weight.values.numel()
    return few and weight.int8_noise <= MOST_NOISE


def _needs_steps(node: Node) -> bool:
    """Whether it is a convolution that could round what it reads to 8 bits."""
    op = node.op
    return isinstance(op, Conv) and (can_be_int8(op) or can_be_codes(op))


def can_be_int8(op: Conv) -> bool:
    return (
        op.weight.kind is WeightKind.SIGN
        and op.window.taps <= MAX_TAPS
        and not op.in_floats
    )


def _quant(low: float, high: float) -> Quant:
    # A value that is always 0 gets a step of any size but zero.
    largest = max(-low, high) or 1.0
    if low >= 0:
        return Quant(scale=largest / UNSIGNED_HIGH, low=0, high=UNSIGNED_HIGH)
    # Symmetric around zero: −128 stays unused.
    return Quant(scale=largest / SIGNED_HIGH, low=-SIGNED_HIGH, high=SIGNED_HIGH)
