"""Codes for rows that are whole steps of their own scale: one table of whole numbers,
or one turned for each row where zero points lie apart.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tersify.codec.entries import whole_levels
from tersify.codec.entropy import Ints
from tersify.codec.grid import scales_of
from tersify.codec.layout import BLOCK_ELEMENTS
from tersify.codec.levels import (
    MAX_LEVELS,
    Levels,
    arrange,
    from_bits,
    to_bits,
)

Floats = npt.NDArray[np.float64]


def steps_of(found: Levels) -> tuple[Ints, Tensor, Tensor] | None:
    """A code for each value, the whole numbers behind the codes, (K,) or (rows, K), and
    a scale for each row.
    """
    values = torch.zeros(found.rows, found.most, dtype=found.dtype)
    known = torch.zeros(found.rows, found.most, dtype=torch.bool)
    row, place = torch.from_numpy(found.row), torch.from_numpy(found.place)
    values[row, place] = found.values()
    known[row, place] = True
    solved = scales_of(values, known)
    if solved is None:
        return None
    scale, steps = solved
    wholes = steps[row, place]
    patterns, inverse = np.unique(to_bits(wholes), return_inverse=True)
    count = _levels_to(wholes)
    # Levels without a gap are the same in every tensor, and need not be told in a small
    # file; few of them are needed for that.
    if (
        count <= min(MAX_LEVELS, 2 * len(patterns))
        and not wholes[wholes == 0].signbit().any()
    ):
        book = whole_levels(count).to(found.dtype)
        return wholes.long().numpy() % count, book, scale
    if len(patterns) <= MAX_LEVELS:
        new, table = arrange(
            patterns, np.zeros(len(patterns), np.int64), 1, found.dtype
        )
        return new[inverse.reshape(-1)], from_bits(table[0], found.dtype), scale
    turned = _turned(wholes.double().numpy(), found)
    return None if turned is None else (*turned, scale)


def _levels_to(wholes: Tensor) -> int:
    """How many levels 0, 1, …, −2, −1 reach from the smallest to the largest number."""
    return max(2 * int(wholes.max()), 1 - 2 * int(wholes.min()), 1)


def _turned(wholes: Floats, found: Levels) -> tuple[Ints, Tensor] | None:
    """Codes are the whole numbers modulo 256, and each row has a number of its own above
    which they stand for negative ones: 256 steps with a zero point.
    """
    low, high = np.zeros(found.rows), np.zeros(found.rows)
    np.minimum.at(low, found.row, wholes)
    np.maximum.at(high, found.row, wholes)
    if (high - low).max() >= MAX_LEVELS or found.rows * MAX_LEVELS > BLOCK_ELEMENTS:
        return None
    # As many rows as possible turn at the same number: a table that repeats costs
    # little in the file.
    fits = np.bincount(high.astype(np.int64), minlength=2 * MAX_LEVELS).cumsum()
    fits -= np.bincount(
        low.astype(np.int64) + MAX_LEVELS, minlength=2 * MAX_LEVELS
    ).cumsum()
    turn = np.clip(int(fits.argmax()), high, low + MAX_LEVELS - 1)
    every = np.arange(MAX_LEVELS)
    book = np.where(every <= turn[:, None], every, every - MAX_LEVELS).astype(
        np.float64
    )
    codes = wholes.astype(np.int64) % MAX_LEVELS
    # −0.0 is a value of its own, and takes a code that its row leaves free: best one
    # that most rows leave free.
    minus = (wholes == 0) & np.signbit(wholes)
    if minus.any():
        used = np.zeros(book.shape, bool)
        used[found.row[~minus], codes[~minus]] = True
        order = used.sum(0).argsort(kind="stable")
        free = order[used[:, order].argmin(1)]
        rows = found.row[minus]
        codes[minus] = free[rows]
        book[rows, free[rows]] = -0.0
    return codes, torch.from_numpy(book).to(found.dtype)
