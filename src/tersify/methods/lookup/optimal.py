"""The best table there is: exact dynamic programming over the levels that the words can
represent.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import numpy as np

from tersify.methods.lookup.range_split import interval_counts
from tersify.tensor.lookup_table import Floats, Ints, TableFormat

CHUNK = 1 << 20


class Moments:
    """Weight, sum and sum of squares of everything below each point of a fine grid, so
    that any cut is free.

    No cut is made beyond ±`reach`, so weights out there need no bins of their own.
    """

    def __init__(
        self, weights: Floats, importance: Floats | None, spacing: float, reach: float
    ) -> None:
        self.spacing = spacing
        self.lowest, self.highest = np.clip(
            [weights.min(), weights.max()], -reach, reach
        )
        # Index of the grid point at or below the smallest weight; bins count from
        # there.
        self.first = int(np.floor(self.lowest / spacing))
        width = int(np.floor(self.highest / spacing)) + 1 - self.first
        sums = np.zeros((3, width))
        # In chunks, because the temporaries of a whole embedding matrix would take
        # several times its memory.
        for start in range(0, len(weights), CHUNK):
            part = weights[start : start + CHUNK]
            bins = (
                np.floor(np.clip(part, -reach, reach) / spacing).astype(np.int64)
                - self.first
            )
            once = (
                np.ones_like(part)
                if importance is None
                else importance[start : start + CHUNK]
            )
            # Σ1, Σw and Σw² of each bin, weighted by importance: enough for the squared
            # error around any point.
            for power in range(3):
                sums[power] += np.bincount(bins, once * part**power, width)
        # below[p, i] sums over all weights left of grid point i, so a difference of two
        # columns is the sum over any interval.
        below = np.concatenate([np.zeros((3, 1)), np.cumsum(sums, axis=1)], axis=1)
        self.total = below[:, -1]
        points = np.arange(self.first, self.first + width + 1) * spacing
        # 2·Σ(w − point) over the weights below the point; see `_best_levels` for what
        # it stands for.
        self.pull = 2 * (below[1] - points * below[0])

    def pull_between(self, later: Floats, earlier: Floats) -> Floats:
        """2·Σ (w − midpoint) over the weights below each midpoint [later, earlier];
        points lie two spacings apart.
        """
        # Midpoints of two levels lie on the fine grid, because levels lie two spacings
        # apart; a midpoint's index is the sum of the halved indices.
        rows, columns = (
            np.rint(points / (2 * self.spacing)).astype(np.int64)
            for points in (later, earlier)
        )
        lowest, highest = (int(rows[i] + columns[i]) for i in (0, -1))
        return self._pull_over(lowest, highest).take((rows - lowest)[:, None] + columns)

    def _pull_over(self, lowest: int, highest: int) -> Floats:
        """The pull at grid points lowest…highest: none before the weights, and that of
        all of them behind.
        """
        last = self.first + len(self.pull) - 1
        behind = np.arange(max(last + 1, lowest), highest + 1) * self.spacing
        inside = self.pull[
            max(lowest - self.first, 0) : max(highest - self.first + 1, 0)
        ]
        before = np.zeros(max(min(self.first - lowest, highest - lowest + 1), 0))
        return np.concatenate(
            [before, inside, 2 * (self.total[1] - behind * self.total[0])]
        )

    def around(self, points: Floats) -> Floats:
        """The error if every weight went to this one point."""
        return self.total[2] - 2 * points * self.total[1] + points**2 * self.total[0]


def optimal_table(
    rows: list[Moments],
    form: TableFormat,
    shifts: range,
    *,
    ratio: float | None,
    force_zero: bool,
) -> tuple[TableFormat, Floats]:
    """The shift, and for each row the levels, with the least squared error over all
    rows together.
    """
    best: tuple[float, TableFormat, Floats] | None = None
    # All tables of a tensor share one format, so each k is tried with every row's own
    # best levels.
    for k in shifts:
        shifted = replace(form, k=k)
        error, levels = 0.0, []
        for row in rows:
            row_error, row_levels = _best_levels(row, shifted, ratio, force_zero)
            error += row_error
            levels.append(row_levels)
        # Strictly less: among equals the smallest shift stays, which is deterministic.
        if best is None or error < best[0]:
            best = error, shifted, np.stack(levels)
    assert best is not None
    return best[1], best[2]


def _best_levels(
    moments: Moments, form: TableFormat, ratio: float | None, force_zero: bool
) -> tuple[float, Floats]:
    """Choose at most 2^n points of the format's grid that minimise Σ (w − nearest)².

    Put all weights on the last point; adding a point g_i before g_j then gains (g_j −
    g_i)·pull(midpoint), so the error is a sum over neighbours and dynamic programming
    over (how many points, which is last) is exact.
    """
    grid = _useful(form.grid(), moments)
    zero = int(np.flatnonzero(grid == 0)[0]) if force_zero else None
    ranges = _ranges(grid, form, ratio)

    @cache
    def gain(start: int, stop: int, start_before: int, stop_before: int) -> Floats:
        later, earlier = grid[start:stop], grid[start_before:stop_before]
        found = moments.pull_between(later, earlier)
        found *= later[:, None] - earlier
        rows, columns = (
            np.arange(start, stop)[:, None],
            np.arange(start_before, stop_before),
        )
        # Levels must ascend, so a later point never precedes an earlier one. Disjoint
        # ranges cannot break this and need no mask.
        if start < stop_before:
            found[rows < columns] = np.inf
        if zero is not None:
            # A step over zero would leave zero without a level.
            found[(rows > zero) & (columns < zero)] = np.inf
        return found

    start, stop = ranges[0]
    cost = np.zeros(stop - start)
    if zero is not None:
        # A first level above zero would leave zero out.
        cost[max(zero + 1 - start, 0) :] = np.inf
    came_from: list[Ints] = []
    # Forward pass: cost[j] is the least gain-adjusted error with as many levels as
    # ranges seen so far, the last of them at point j.
    for before, (start, stop) in itertools.pairwise(ranges):
        through = gain(start, stop, *before) + cost
        best = through.argmin(1)
        cost = through[np.arange(len(best)), best]
        came_from.append(best + before[0])
    # The start of the telescoping sum: all weights on the last point.
    final = moments.around(grid[start:stop])
    if zero is not None:
        # A last level below zero would leave zero out, too.
        final[: max(zero - start, 0)] = np.inf
    total = cost + final
    chosen = [start + int(total.argmin())]
    # Backward pass: follow the choices from the last level to the first.
    for (begin, _), best in zip(reversed(ranges[1:]), reversed(came_from), strict=True):
        chosen.append(int(best[chosen[-1] - begin]))
    return float(total.min()), grid[chosen[::-1]]


def _useful(grid: Floats, moments: Moments) -> Floats:
    """The points among the weights, one beyond at either end, and zero."""
    # Points further out gain nothing, and dynamic programming is quadratic in their
    # number.
    start = max(int(np.searchsorted(grid, moments.lowest)) - 1, 0)
    stop = int(np.searchsorted(grid, moments.highest)) + 1
    return np.union1d(grid[start:stop], [0.0])


def _ranges(
    grid: Floats, form: TableFormat, ratio: float | None
) -> list[tuple[int, int]]:
    """From which to which point the first, second, … level may lie: by sign, and by
    partition where the ratio says.
    """
    half, zero = form.levels // 2, int(np.searchsorted(grid, 0.0))
    ranges = [(0, len(grid))] * form.levels
    if form.sign_in_code:
        ranges = [(0, zero + 1)] * half + [(zero, len(grid))] * half
    if ratio is None or not form.k:
        return ranges
    # Equal masses, so both tails get equally many levels.
    left, internal, right = interval_counts(form.n, ratio, 0.5, 0.5)
    inner = np.flatnonzero(form.is_internal(grid))
    first, last = int(inner[0]), int(inner[-1])
    # A tail without a word of its own repeats the outermost internal one.
    parts = (
        [(0, first + 1)] * left
        + [(first, last + 1)] * internal
        + [(last, len(grid))] * right
    )
    return [
        (max(a, c), min(b, d)) for (a, b), (c, d) in zip(ranges, parts, strict=True)
    ]
