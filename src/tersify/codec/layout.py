"""How a tensor is seen by the coders: filters × channels × taps, cut into blocks of
bounded size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

BLOCK_ELEMENTS = 1 << 22
MAX_TAPS = 1 << 12
OWN_BOX_ELEMENTS = 512
PIECE_ELEMENTS = 1 << 16


class Box(NamedTuple):
    """A run of `filters * channels * taps` codes in row-major order; `width` is that of
    a kernel's row.
    """

    filters: int
    channels: int
    taps: int
    width: int

    @property
    def elements(self) -> int:
        return self.filters * self.channels * self.taps


def box_of(shape: tuple[int, ...]) -> Box:
    """The box of a whole tensor of codes; a vector is one filter."""
    if len(shape) < 2:
        return flat_box(math.prod(shape))
    taps = math.prod(shape[2:])
    # A huge last dimension is no window: its elements count as channels.
    if taps > MAX_TAPS:
        return Box(shape[0], shape[1] * taps, 1, 1)
    return Box(shape[0], shape[1], taps, shape[-1] if taps > 1 else 1)


def flat_box(elements: int) -> Box:
    return Box(1, elements, 1, 1)


def count_blocks(box: Box) -> int:
    """How many blocks `blocks_of` gives, without making them."""
    if box.elements <= BLOCK_ELEMENTS:
        return min(box.elements, 1)
    row = box.channels * box.taps
    if row <= BLOCK_ELEMENTS:
        return -(-box.filters // (BLOCK_ELEMENTS // row))
    return -(-box.channels // (BLOCK_ELEMENTS // box.taps)) * box.filters


def blocks_of(box: Box) -> list[Box]:
    """The blocks a box is stored in, in row-major order; each has at most
    `BLOCK_ELEMENTS` elements.
    """
    filters, channels, taps, width = box
    if box.elements <= BLOCK_ELEMENTS:
        return [box] if box.elements else []
    # Whole filters where they fit, so that a block keeps the statistics of its rows.
    if channels * taps <= BLOCK_ELEMENTS:
        step = BLOCK_ELEMENTS // (channels * taps)
        return [
            Box(min(step, filters - f), channels, taps, width)
            for f in range(0, filters, step)
        ]
    step = BLOCK_ELEMENTS // taps
    row = [
        Box(1, min(step, channels - c), taps, width) for c in range(0, channels, step)
    ]
    return row * filters


def boxes_of_arrays(
    arrays: Sequence[tuple[str, int]], *, piece_elements: int = BLOCK_ELEMENTS
) -> list[Box]:
    """The boxes of a group of arrays, given as (kind, elements); small arrays of a kind
    share one.
    """
    boxes: list[Box] = []
    pooled_kind: str | None = None
    for kind, elements in arrays:
        small = elements < OWN_BOX_ELEMENTS
        # A box has statistics of its own, whose description would cost more than a
        # small array saves.
        if small and kind == pooled_kind:
            boxes[-1] = flat_box(boxes[-1].elements + elements)
        else:
            boxes.append(flat_box(elements))
        pooled_kind = kind if small else None
    return [
        flat_box(min(piece_elements, box.elements - at))
        for box in boxes
        for at in range(0, box.elements, piece_elements)
    ]
