"""CORDIC: magnitude and phase of a point, and back, by shifts and additions (Volder
1959).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tersify.runtime.fixed.fixed_point import Ints, shift_right

GAIN_FRACTION = 16


@dataclass(frozen=True, kw_only=True)
class Cordic:
    """Angles are integers, 2^angle_bits to the turn; coordinates carry `guard_bits`
    more inside.
    """

    iterations: int = 18
    guard_bits: int = 3
    angle_bits: int = 20
    rounding: str = "half-up"

    def __post_init__(self) -> None:
        if (
            not 1 <= self.iterations <= 30
            or not 0 <= self.guard_bits <= 16
            or not 8 <= self.angle_bits <= 30
        ):
            raise ValueError(
                f"iterations must be 1..30, guard_bits 0..16, angle_bits 8..30, "
                f"got {self.iterations}, {self.guard_bits}, {self.angle_bits}"
            )

    def polar(self, x: Ints, y: Ints) -> tuple[Ints, Ints]:
        """(x, y) → magnitude, in the same steps, and phase."""
        # The iterations reach angles up to about ±99.9°, so points on the left are
        # first turned by half a turn.
        turned = x < 0
        x, y = (
            np.where(turned, -x, x) << self.guard_bits,
            np.where(turned, -y, y) << self.guard_bits,
        )
        angle = np.zeros_like(x)
        # Vectoring: turn towards the x axis by ±arctan(2^−step), until y is about 0.
        # Both new coordinates use the old ones.
        for step, turn in enumerate(self._turns()):
            down = y >= 0
            x, y = (
                np.where(down, x + (y >> step), x - (y >> step)),
                np.where(down, y - (x >> step), y + (x >> step)),
            )
            angle = np.where(down, angle + turn, angle - turn)
        half = 1 << (self.angle_bits - 1)
        # Back into −half .. half − 1, one turn.
        phase = (np.where(turned, angle + half, angle) + half) % (2 * half) - half
        return self._without_gain(x), phase

    def rectangular(self, magnitude: Ints, phase: Ints) -> tuple[Ints, Ints]:
        """Magnitude and phase → (x, y)."""
        half = 1 << (self.angle_bits - 1)
        # More than a quarter turn: start from the opposite point.
        behind = np.abs(phase) > half // 2
        left = np.where(behind, phase - np.sign(phase) * half, phase)
        x = np.where(behind, -magnitude, magnitude) << self.guard_bits
        y = np.zeros_like(x)
        # Rotation: turn until no angle is left.
        for step, turn in enumerate(self._turns()):
            up = left >= 0
            x, y = (
                np.where(up, x - (y >> step), x + (y >> step)),
                np.where(up, y + (x >> step), y - (x >> step)),
            )
            left = np.where(up, left - turn, left + turn)
        return self._without_gain(x), self._without_gain(y)

    def _turns(self) -> list[int]:
        full = 1 << self.angle_bits
        return [
            round(float(np.arctan(2.0**-step)) / (2 * np.pi) * full)
            for step in range(self.iterations)
        ]

    def _without_gain(self, values: Ints) -> Ints:
        # Each step lengthens the vector by √(1 + 4^−step), about 1.647 in all. The
        # product with the inverse also drops the guard bits.
        gain = float(
            np.prod([np.sqrt(1 + 4.0**-step) for step in range(self.iterations)])
        )
        constant = round(2**GAIN_FRACTION / gain)
        return shift_right(
            values * constant, GAIN_FRACTION + self.guard_bits, self.rounding
        )
