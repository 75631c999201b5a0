"""The values of a program as buffers, converted between bytes and floats where a step
wants the other.
"""

from __future__ import annotations

from tersify.export.c.c_steps import Buffer, Step, Steps
from tersify.export.c.constants import Quant


class StepBuffers:
    """Values by their numbers in the program. A conversion is a step of its own."""

    def __init__(self, made: Steps) -> None:
        self._made = made
        self._values: list[Buffer] = []
        self._quants: dict[int, Quant] = {}
        # the same numbers as bytes or as floats, by the value
        self._other: dict[int, Buffer] = {}

    def add(self, buffer: Buffer) -> Buffer:
        """The next value."""
        self._values.append(buffer)
        return buffer

    def quantize(self, value: int, quant: Quant) -> None:
        """How the value becomes bytes, if a step asks for them."""
        self._quants[value] = quant

    def as_it_lies(self, value: int) -> Buffer:
        return self._values[value]

    def floats(self, value: int) -> Buffer:
        """The value as floats, converted where it lies as bytes."""
        return self._as(value, self._values[value].quant is None, None)

    def bytes(self, value: int) -> Buffer:
        """The value as bytes of its quantization."""
        buffer = self._values[value]
        return self._as(
            value, buffer.quant is not None, buffer.quant or self._quants[value]
        )

    def _as(self, value: int, fits: bool, quant: Quant | None) -> Buffer:
        buffer = self._values[value]
        if fits:
            return buffer
        if value not in self._other:
            self._other[value] = Buffer(buffer.shape, quant, items=buffer.items)
            kernel = "to_floats" if quant is None else "to_bytes"
            self._made.steps.append(
                Step(kernel=kernel, reads=(buffer,), writes=self._other[value])
            )
        return self._other[value]
