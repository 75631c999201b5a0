"""The best table there is: exact dynamic programming over the levels that the words can represent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tersify.methods.lookup_split import interval_counts
from tersify.tensor.table import Floats, TableFormat

CHUNK = 1 << 20


class Moments:
    """Weight, sum and sum of squares of everything below each point of a fine grid, so that any cut is free.

    No cut is made beyond ±`reach`, so weights out there need no bins of their own.
    """

    def __init__(self, weights: Floats, importance: Floats | None, spacing: float, reach: float) -> None:
        self.spacing = spacing
        self.lowest, self.highest = np.clip([weights.min(), weights.max()], -reach, reach)
        self.first = int(np.floor(self.lowest / spacing))
        width = int(np.floor(self.highest / spacing)) + 1 - self.first
        sums = np.zeros((3, width))
        for start in range(0, len(weights), CHUNK):
            part = weights[start : start + CHUNK]
            bins = np.floor(np.clip(part, -reach, reach) / spacing).astype(np.int64) - self.first
            once = np.ones_like(part) if importance is None else importance[start : start + CHUNK]
            for power in range(3):
                sums[power] += np.bincount(bins, once * part**power, width)
        below = np.concatenate([np.zeros((3, 1)), np.cumsum(sums, axis=1)], axis=1)
        self.total = below[:, -1]
        points = np.arange(self.first, self.first + width + 1) * spacing
        self.pull = 2 * (below[1] - points * below[0])

    def pull_at(self, points: Floats) -> Floats:
        """2·Σ (w − point) over the weights below each point, which must lie on the grid or outside the weights."""
        index = np.rint(points / self.spacing).astype(np.int64) - self.first
        inside = self.pull[np.clip(index, 0, len(self.pull) - 1)]
        beyond = 2 * (self.total[1] - points * self.total[0])
        return np.where(index < 0, 0.0, np.where(index >= len(self.pull), beyond, inside))

    def around(self, points: Floats) -> Floats:
        """The error if every weight went to this one point."""
        return self.total[2] - 2 * points * self.total[1] + points**2 * self.total[0]


def optimal_table(
    rows: list[Moments], form: TableFormat, shifts: range, *, ratio: float | None, force_zero: bool
) -> tuple[TableFormat, Floats]:
    """The shift, and for each row the levels, with the least squared error over all rows together."""
    best: tuple[float, TableFormat, Floats] | None = None
    for k in shifts:
        shifted = replace(form, k=k)
        error, levels = 0.0, []
        for row in rows:
            row_error, row_levels = _best_levels(row, shifted, ratio, force_zero)
            error += row_error
            levels.append(row_levels)
        if best is None or error < best[0]:
            best = error, shifted, np.stack(levels)
    assert best is not None
    return best[1], best[2]


def _best_levels(moments: Moments, form: TableFormat, ratio: float | None, force_zero: bool) -> tuple[float, Floats]:
    """Choose at most 2^n points of the format's grid that minimise Σ (w − nearest)².

    Put all weights on the last point; adding a point g_i before g_j then gains (g_j − g_i)·pull(midpoint), so the
    error is a sum over neighbours and dynamic programming over (how many points, which is last) is exact.
    """
    grid = _useful(form.grid(), moments)
    gain = (grid[:, None] - grid) * moments.pull_at((grid[:, None] + grid) / 2)  # [j, i]
    gain[np.triu_indices(len(grid), 1)] = np.inf
    final, cost = moments.around(grid), np.zeros(len(grid))
    if force_zero:
        zero = int(np.flatnonzero(grid == 0)[0])
        gain[zero + 1 :, :zero] = np.inf
        final[:zero] = np.inf
        cost[zero + 1 :] = np.inf
    allowed = _allowed(grid, form, ratio)
    if allowed is not None:
        cost = np.where(allowed[0], cost, np.inf)
    came_from = np.zeros((form.levels, len(grid)), np.int64)
    everyone = np.arange(len(grid))
    for count in range(1, form.levels):
        through = gain + cost
        came_from[count] = through.argmin(1)
        cost = through[everyone, came_from[count]]
        if allowed is not None:
            cost = np.where(allowed[count], cost, np.inf)
    last = int((cost + final).argmin())
    error = float(cost[last] + final[last])
    chosen = [last]
    for count in range(form.levels - 1, 0, -1):
        chosen.append(int(came_from[count, chosen[-1]]))
    return error, grid[chosen[::-1]]


def _useful(grid: Floats, moments: Moments) -> Floats:
    """The points among the weights, one beyond at either end, and zero."""
    start = max(int(np.searchsorted(grid, moments.lowest)) - 1, 0)
    stop = int(np.searchsorted(grid, moments.highest)) + 1
    return np.union1d(grid[start:stop], [0.0])


def _allowed(grid: Floats, form: TableFormat, ratio: float | None) -> npt.NDArray[np.bool_] | None:
    """Which points may be the first, second, … level: by sign, and by partition where the ratio fixes it."""
    if not form.sign_in_code and ratio is None:
        return None
    allowed = np.ones((form.levels, len(grid)), bool)
    if form.sign_in_code:
        allowed[: form.levels // 2] &= grid <= 0
        allowed[form.levels // 2 :] &= grid >= 0
    if ratio is not None and form.k:
        left, internal, _ = interval_counts(form.n, ratio, 0.5, 0.5)
        inner = form.is_internal(grid)
        allowed[left : left + internal] &= inner
        # A tail without a word of its own repeats the outermost internal one.
        edge = np.flatnonzero(inner)[[0, -1]]
        outer = ~inner
        outer[edge] = True
        allowed[:left] &= outer & (grid <= grid[edge[0]])
        allowed[left + internal :] &= outer & (grid >= grid[edge[1]])
    return allowed
