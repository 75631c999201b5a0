"""A layer and the circuit for it: how many lanes it has, how long it takes, and its
Verilog parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from tersify.runtime.fixed import FixedLayer

ROUNDING_NUMBERS = {"floor": 0, "half-up": 1, "half-even": 2, "toward-zero": 3}
MOST_LANES = 256


@dataclass(frozen=True, eq=False)
class Circuit:
    """A layer on `lanes` lanes, each of which sums one neuron of a group."""

    layer: FixedLayer
    lanes: int

    @classmethod
    def of(cls, layer: FixedLayer, wanted: int) -> Circuit:
        """No lane without a neuron, and none that would wait for the output stage."""
        if not 1 <= wanted <= MOST_LANES:
            raise ValueError(f"lanes must be 1..{MOST_LANES}, got {wanted}")
        # While a group of `lanes` neurons is summed, which takes `inputs` clocks, the
        # output stage writes one neuron of the last group a clock: with more lanes than
        # inputs it would fall behind.
        return cls(layer, min(wanted, layer.outputs, layer.inputs))

    @property
    def groups(self) -> int:
        return -(-self.layer.outputs // self.lanes)

    @property
    def clocks(self) -> int:
        """From the clock that takes `start` to the one that shows the last output."""
        # Each group takes a clock for every input and one in which its sums are
        # captured; then the last group's neurons leave one by one.
        in_last_group = self.layer.outputs - (self.groups - 1) * self.lanes
        return self.groups * (self.layer.inputs + 1) + in_last_group + 1

    def parameters(self) -> dict[str, int]:
        """The circuit's numbers under the names of the Verilog module's parameters."""
        layer, form = self.layer, self.layer.table.format
        return {
            "INPUTS": layer.inputs,
            "OUTPUTS": layer.outputs,
            "LANES": self.lanes,
            "N": form.n,
            "M": form.m,
            "K": form.k,
            "X_WIDTH": layer.input.width,
            "Y_WIDTH": layer.output.width,
            "ACC_WIDTH": layer.accumulator.width,
            "BIAS_WIDTH": layer.bias_format.width,
            "BIAS_SHIFT": layer.bias_shift,
            "OUTPUT_SHIFT": layer.output_shift,
            "RELU": int(layer.relu),
            "ROUNDING": ROUNDING_NUMBERS[layer.rounding],
            "SIGN_IN_CODE": int(form.sign_in_code),
        }
