"""An integer FFT as a circuit computes it: radix 2, quantized twiddles, a shift behind
every stage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tersify.runtime.fixed.fixed_point import Format, Ints, Monitor, shift_right


@dataclass(frozen=True, kw_only=True)
class FixedFft:
    """`points` complex integers of `width` bits; each stage's result is shifted right
    by its entry of `shifts`.
    """

    points: int = 256
    width: int = 26
    twiddle_width: int = 18
    shifts: tuple[int, ...] = (1,) * 8
    rounding: str = "half-up"

    def __post_init__(self) -> None:
        # A power of two has a single bit set.
        if self.points & (self.points - 1) or self.points < 2:
            raise ValueError(f"points must be a power of two, got {self.points}")
        if len(self.shifts) != self.stages or min(self.shifts) < 0:
            raise ValueError(
                f"{self.points} points take {self.stages} shifts of 0 or more, got {self.shifts}"
            )

    @property
    def stages(self) -> int:
        return self.points.bit_length() - 1

    def __call__(
        self, real: Ints, imaginary: Ints, monitor: Monitor, name: str = "fft"
    ) -> tuple[Ints, Ints]:
        """Rows of `points` integers → their spectra, divided by 2^(sum of shifts)."""
        # Decimation in time: bit-reversed inputs let every stage work on neighbours.
        order = _bit_reversed(self.points)
        re, im = real[:, order], imaginary[:, order]
        form = Format(width=self.width, fraction=0)
        for stage, shift in enumerate(self.shifts):
            half = 1 << stage
            cos, sin = self._twiddles(half)
            # [rows, blocks, upper or lower half, position in the half].
            blocks = (len(re), self.points // (2 * half), 2, half)
            re_pairs, im_pairs = re.reshape(blocks), im.reshape(blocks)
            a_re, a_im, b_re, b_im = (
                re_pairs[:, :, 0],
                im_pairs[:, :, 0],
                re_pairs[:, :, 1],
                im_pairs[:, :, 1],
            )
            # t = b · (cos − i·sin), then the butterfly a + t and a − t. A sum may need
            # one bit more, which the shift behind the stage makes room for.
            fraction = self.twiddle_width - 2
            t_re = shift_right(b_re * cos + b_im * sin, fraction, self.rounding)
            t_im = shift_right(b_im * cos - b_re * sin, fraction, self.rounding)
            re = np.stack([a_re + t_re, a_re - t_re], axis=2).reshape(
                len(re), self.points
            )
            im = np.stack([a_im + t_im, a_im - t_im], axis=2).reshape(
                len(re), self.points
            )
            re = monitor.see(
                f"{name}.stage{stage + 1}.real",
                shift_right(re, shift, self.rounding),
                form,
            )
            im = monitor.see(
                f"{name}.stage{stage + 1}.imaginary",
                shift_right(im, shift, self.rounding),
                form,
            )
        return re, im

    def inverse(
        self, real: Ints, imaginary: Ints, monitor: Monitor, name: str = "ifft"
    ) -> tuple[Ints, Ints]:
        """The transform back, without its factor 1/points beyond the shifts: real and
        imaginary change places.
        """
        # Swapping real and imaginary parts before and after conjugates the twiddles.
        im, re = self(imaginary, real, monitor, name)
        return re, im

    def _twiddles(self, half: int) -> tuple[Ints, Ints]:
        """cos and sin of the stage's angles with two bits before the point, so that 1
        is exact.
        """
        angles = np.pi * np.arange(half) / half
        one = 1 << (self.twiddle_width - 2)
        return np.rint(np.cos(angles) * one).astype(np.int64), np.rint(
            np.sin(angles) * one
        ).astype(np.int64)


def _bit_reversed(points: int) -> Ints:
    order = np.zeros(1, np.int64)
    while len(order) < points:
        order = np.concatenate([2 * order, 2 * order + 1])
    return order
