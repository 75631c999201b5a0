"""The few values that a tensor or its rows hold: found in one pass, bit by bit, and
given codes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tersify.codec.entropy import Ints, order0_bits
from tersify.codec.native import Codes, find_levels, relabel
from tersify.codec.planes import plane_levels

MAX_LEVELS = 256
Bits = npt.NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class Levels:
    """The values of every row, row after row: their bits, how often each occurs, and
    the code it was given.
    """

    dtype: torch.dtype
    rows: int
    codes: Codes  # one per element, as places among the values of its row
    row: Ints
    place: Ints
    patterns: Bits
    counts: Ints

    @property
    def elements(self) -> int:
        return self.codes.size

    @property
    def most(self) -> int:
        """How many values the row with the most of them has."""
        return int(self.place.max()) + 1

    def values(self) -> Tensor:
        return from_bits(self.patterns, self.dtype)

    def dense_bits(self) -> float:
        """What the same elements take as planes: the entropy of each plane alone."""
        shift, bits = 8 * self.dtype.itemsize, 0.0
        # Planes from the most significant bits down; bit_length() − 1 is the width of a
        # plane.
        for levels in plane_levels(self.dtype.itemsize, is_float=True):
            shift -= levels.bit_length() - 1
            plane = (self.patterns >> np.uint64(shift)) & np.uint64(levels - 1)
            bits += order0_bits(
                np.bincount(plane.astype(np.int64), weights=self.counts)
            )
        return bits

    def without_zero(self) -> Levels:
        """The same levels without zero, to estimate the size of the survivors."""
        kept = self.patterns != 0
        parts = {
            part: getattr(self, part)[kept]
            for part in ("row", "place", "patterns", "counts")
        }
        return replace(self, **parts)

    def relabelled(self, new: Ints) -> Codes:
        """The codes of all elements, where the values get the codes `new`."""
        # 256 entries a row, whatever the number of levels: a code can then never read
        # beyond its row.
        table = np.zeros((self.rows, 256), np.uint8)
        table[self.row, self.place] = new
        codes = self.codes.copy()
        relabel(codes, table)
        return codes


def levels_of(rows: Tensor, limit: int = MAX_LEVELS) -> Levels | None:
    """The values of each row of a matrix, or None where a row holds more than `limit`."""
    codes = np.empty(rows.numel(), np.uint8)
    found = find_levels(
        rows.contiguous().reshape(-1).view(torch.uint8).numpy(),
        rows.shape[0],
        min(limit, MAX_LEVELS),
        codes,
    )
    if found is None:
        return None
    patterns, counts, per_row = found
    ends = np.cumsum(per_row)
    # Counts from 0 within each row: the running index minus the row's first.
    place = np.arange(len(patterns)) - np.repeat(ends - per_row, per_row)
    return Levels(
        dtype=rows.dtype,
        rows=rows.shape[0],
        codes=codes,
        row=np.repeat(np.arange(rows.shape[0]), per_row),
        place=place,
        patterns=patterns,
        counts=counts,
    )


def codebook_of(levels: Levels) -> tuple[Ints, Tensor] | None:
    """A code for each value and the codebook, one row per row; None where that takes
    more than 256 codes.

    Code 0 is zero where there is one. Then come the values in ascending order; those
    nearest to zero stand at the same place in every row, so that codes mean the same in
    all of them.
    """
    new, book = arrange(levels.patterns, levels.row, levels.rows, levels.dtype)
    return None if book.shape[1] > MAX_LEVELS else (new, from_bits(book, levels.dtype))


def arrange(
    patterns: Bits, row: Ints, rows: int, dtype: torch.dtype
) -> tuple[Ints, Bits]:
    """A code for each pattern, no two of a row alike, and the patterns of the codebook
    (rows, K).
    """
    sign = np.uint64(1 << (8 * dtype.itemsize - 1))
    negative = (patterns & sign) != 0
    # ascending, −0.0 before 0.0
    key = np.where(negative, ~patterns & (sign - np.uint64(1)), patterns | sign)
    has_zero = np.bincount(row[patterns == 0], minlength=rows) > 0
    # −0.0 is code 0 only where 0.0 is missing
    is_zero = (patterns == 0) | ((patterns == sign) & ~has_zero[row])
    negative &= ~is_zero
    positive = ~negative & ~is_zero
    below, zeros, above = (
        np.bincount(row[part], minlength=rows) for part in (negative, is_zero, positive)
    )
    # One column for zero if any row has one, so that code 0 means zero in all of them.
    first = int(bool(is_zero.any()))
    order = np.lexsort((key, row))
    starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))])
    rank = np.empty(len(patterns), np.int64)
    # The place of each value among those of its row in ascending order, zeros counted
    # too.
    rank[order] = np.arange(len(patterns)) - starts[row[order]]
    # Rows with fewer negative values begin later, so that the smallest magnitudes of
    # all rows meet in the same columns.
    lowest = int(below.max(initial=0))
    new = first + lowest - below[row] + rank - np.where(positive, zeros[row], 0)
    new[is_zero] = 0
    book = np.zeros((rows, first + lowest + int(above.max(initial=0))), np.uint64)
    nonzero = order[~is_zero[order]]
    fill = np.full(rows, patterns[nonzero[-1]] if len(nonzero) else 0, np.uint64)
    fill[row[nonzero]] = patterns[nonzero]
    # codes that a row does not use; zero is code 0 alone
    book[:, first:] = fill[:, None]
    book[row, new] = patterns
    return new, book


def from_bits(patterns: Bits, dtype: torch.dtype) -> Tensor:
    width = dtype.itemsize
    return (
        torch.from_numpy(patterns.astype(f"<u{width}").view(np.uint8).copy())
        .view(dtype)
        .reshape(patterns.shape)
    )


def to_bits(values: Tensor) -> Bits:
    width = values.dtype.itemsize
    raw = values.contiguous().reshape(-1).view(torch.uint8).numpy()
    return raw.view(f"<u{width}").astype(np.uint64)
