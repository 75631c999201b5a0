"""How a tensor is seen by the coders: filters × channels × taps, cut into blocks of bounded size."""

from __future__ import annotations

import math
from typing import NamedTuple

BLOCK_WEIGHTS = 1 << 22
MAX_TAPS = 1 << 12


class Box(NamedTuple):
    """A run of `filters * channels * taps` codes in row-major order."""

    filters: int
    channels: int
    taps: int

    @property
    def weights(self) -> int:
        return self.filters * self.channels * self.taps


def box_of(shape: tuple[int, ...]) -> Box:
    """Filters × channels × taps of a whole tensor; a vector is one filter."""
    if len(shape) < 2:
        return Box(1, math.prod(shape), 1)
    taps = math.prod(shape[2:])
    return Box(shape[0], shape[1], taps) if taps <= MAX_TAPS else Box(shape[0], shape[1] * taps, 1)


def blocks_of(shape: tuple[int, ...]) -> list[Box]:
    """The blocks a tensor is stored in, in row-major order; each has at most `BLOCK_WEIGHTS` weights."""
    whole = box_of(shape)
    if whole.weights <= BLOCK_WEIGHTS:
        return [whole] if whole.weights else []
    row = whole.channels * whole.taps
    if row <= BLOCK_WEIGHTS:
        step = BLOCK_WEIGHTS // row
        return [Box(min(step, whole.filters - f), whole.channels, whole.taps) for f in range(0, whole.filters, step)]
    step = BLOCK_WEIGHTS // whole.taps
    row_blocks = [Box(1, min(step, whole.channels - c), whole.taps) for c in range(0, whole.channels, step)]
    return row_blocks * whole.filters
