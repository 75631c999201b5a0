"""One layer in integers: code → table → shift → multiply-accumulate → bias → ReLU →
round and saturate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tersify.runtime.fixed.fixed_point import Format, Ints, Monitor, shift_right
from tersify.tensor import Table

VARIANTS = ("widen-weight", "shift-product")


@dataclass(frozen=True, eq=False, kw_only=True)
class FixedLayer:
    """A fully connected layer with a table for its weights.

    The accumulator counts in steps of input step × fine weight step, which makes it
    exact. The bias, in 8 bits with its own point, is moved to that step; `bias_shift`
    says how far to the left.
    """

    table: Table
    bias: Ints
    bias_format: Format
    input: Format
    output: Format
    relu: bool
    rounding: str = "half-up"

    def __post_init__(self) -> None:
        if self.table.codes.ndim != 2:
            raise ValueError(
                f"a layer's weight has two dimensions, got shape {self.table.codes.shape}"
            )
        if len(self.table.words) != 1:
            raise ValueError(
                "the circuit has one table a layer; compress with per_channel = false"
            )
        if self.bias.shape != (self.outputs,):
            raise ValueError(
                f"{self.outputs} outputs need as many biases, got {self.bias.shape}"
            )
        # A negative shift would drop bits of the bias, and the sums would not be exact
        # any more.
        if self.bias_shift < 0:
            raise ValueError(
                f"the bias has {self.bias_format.fraction} fraction bits, the accumulator {self.accumulator.fraction}; "
                "give the bias integer_bits so that it has no more"
            )

    @property
    def outputs(self) -> int:
        return int(self.table.codes.shape[0])

    @property
    def inputs(self) -> int:
        return int(self.table.codes.shape[1])

    @property
    def accumulator(self) -> Format:
        """Wide enough for every input: the largest product times their number, plus the
        bias.
        """
        form = self.table.format
        # One bit for the sign and one for the bias on top of the magnitude.
        largest = max(-self.input.lowest, self.input.highest) * int(
            np.abs(self.table.fine_words()).max()
        )
        width = (self.inputs * largest).bit_length() + 2
        # Fraction bits of factors add up in a product.
        fraction = self.input.fraction + form.fraction + form.k
        bias_width = 8 + max(fraction - self.bias_format.fraction, 0) + 1
        return Format(width=max(width, bias_width), fraction=fraction)

    @property
    def bias_shift(self) -> int:
        return self.accumulator.fraction - self.bias_format.fraction

    @property
    def output_shift(self) -> int:
        return self.accumulator.fraction - self.output.fraction

    def accumulate(self, inputs: Ints, variant: str = "widen-weight") -> Ints:
        """(N, inputs) integers → (N, outputs) exact sums, with the bias.

        Both variants of the circuit give the same integers: the weight is widened
        before the multiplication, or the product of the narrow word is shifted behind
        it.
        """
        words, codes, form = self.table.words[0], self.table.codes, self.table.format
        if variant == "widen-weight":
            sums = exact_matmul(inputs, self.table.fine_words()[0][codes].T)
        elif variant == "shift-product":
            # Fine words count in steps that are 2^k smaller than those of coarse words,
            # so the coarse products are shifted left by k.
            internal = self.table.internal[0]
            fine, coarse = (
                np.where(internal, words, 0)[codes],
                np.where(internal, 0, words)[codes],
            )
            sums = exact_matmul(inputs, fine.T) + (
                exact_matmul(inputs, coarse.T) << form.k
            )
        else:
            raise ValueError(
                f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}"
            )
        return sums + (self.bias << self.bias_shift)

    def __call__(
        self, inputs: Ints, monitor: Monitor | None = None, name: str = "layer"
    ) -> Ints:
        monitor = monitor or Monitor()
        inputs = monitor.see(f"{name}.input", inputs, self.input)
        sums = monitor.see(
            f"{name}.accumulator", self.accumulate(inputs), self.accumulator
        )
        if self.relu:
            sums = np.maximum(sums, 0)
        return monitor.see(
            f"{name}.output",
            shift_right(sums, self.output_shift, self.rounding),
            self.output,
        )


def exact_matmul(a: Ints, b: Ints) -> Ints:
    """Integer product by the floating-point unit: doubles hold integers below 2^53, and
    BLAS is fast on them.
    """
    # A bound on every partial sum, so no rounding can occur on the way.
    largest = (
        int(np.abs(a).max(initial=0)) * int(np.abs(b).max(initial=0)) * a.shape[-1]
    )
    if largest >= 1 << 53:
        return a @ b
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
