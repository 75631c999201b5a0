"""Where the levels of a lookup table go: the paper's range split, a uniform grid, and
Lloyd's steps from there.
"""

from __future__ import annotations

import math

import numpy as np

from tersify.tensor.lookup_table import Floats, TableFormat

LLOYD_STEPS = 50


def interval_counts(
    n: int, ratio: float, p_start: float, p_stop: float
) -> tuple[int, int, int]:
    """Intervals of the left tail, the internal partition and the right tail (paper 2,
    eq. 1–3).

    The tails share the external intervals in proportion to their mass; equal masses get
    half each.
    """
    levels = 2**n
    # ratio = internal/external intervals, hence external = levels/(1 + ratio).
    external = math.floor(levels / (1 + ratio))
    # Even, so that equal tails get equally many.
    external += external % 2
    internal = levels - external
    # The tails hold the probability masses p_start and 1 − p_stop.
    left = round(external * p_start / (p_start + 1 - p_stop))
    right = external - left
    if min(left, internal, right) < 1:
        raise ValueError(
            f"n = {n}, ratio = {ratio:g}, p_start = {p_start:g}, p_stop = {p_stop:g} give the left tail, the "
            f"middle and the right tail {left} + {internal} + {right} intervals, and each part needs one; "
            "change the ratio or take more bits"
        )
    return left, internal, right


def range_split(
    weights: Floats, n: int, ratio: float, p_start: float, p_stop: float
) -> tuple[Floats, float, float]:
    """The 2^n − 1 inner edges (eq. 4 and 5), and the bounds of the internal partition
    among them.
    """
    left, internal, right = interval_counts(n, ratio, p_start, p_stop)
    # Tails are cut at equal probability (eq. 4), so that each of their intervals holds
    # equally many weights; the middle at equal width (eq. 5).
    low_tail = np.quantile(weights, np.arange(1, left + 1) * p_start / left)
    high_tail = np.quantile(weights, p_stop + np.arange(right) * (1 - p_stop) / right)
    low, high = float(low_tail[-1]), float(high_tail[0])
    # Both ends are already edges of the tails.
    middle = np.linspace(low, high, internal + 1)[1:-1]
    return np.concatenate([low_tail, middle, high_tail]), low, high


def interval_means(weights: Floats, edges: Floats) -> Floats:
    """The mean of each interval [edge, next edge), and the midpoint of an empty one
    (eq. 6).
    """
    # side="right" makes intervals closed on the left, [edge, next).
    cells = np.searchsorted(edges, weights, side="right")
    counts = np.bincount(cells, minlength=len(edges) + 1)
    sums = np.bincount(cells, weights, minlength=len(edges) + 1)
    bounds = np.concatenate([[weights.min()], edges, [weights.max()]])
    middles = (bounds[1:] + bounds[:-1]) / 2
    return np.where(counts > 0, sums / np.maximum(counts, 1), middles)


def uniform_levels(n: int, reach: float) -> Floats:
    """The 2^n levels of n-bit fixed point in [−reach, reach)."""
    return np.arange(-(2 ** (n - 1)), 2 ** (n - 1)) * (reach / 2 ** (n - 1))


def midpoints(levels: Floats) -> Floats:
    return (levels[..., 1:] + levels[..., :-1]) / 2


def largest_shift(bound: float, integer_bits: int, most: int) -> int:
    """The largest k up to `most` with |bound| < 2^(integer_bits − k); 0 where there is
    none.
    """
    # log2(0) does not exist, and zero fits whatever the shift.
    if bound == 0:
        return most
    # ceil − 1 and not floor: the inequality is strict, so a bound that is a power of
    # two needs one bit more.
    k = math.ceil(integer_bits - math.log2(abs(bound))) - 1
    return min(max(k, 0), most)


def lloyd(weights: Floats, levels: Floats, *, force_zero: bool) -> Floats:
    """Lloyd's steps: each level becomes the mean of the weights nearest to it."""
    ordered = np.sort(weights)
    # Prefix sums of the sorted weights give every interval's mean without a pass over
    # the weights.
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    for _ in range(LLOYD_STEPS):
        cuts = np.concatenate(
            [[0], np.searchsorted(ordered, midpoints(levels)), [len(ordered)]]
        )
        counts = np.diff(cuts)
        levels = np.where(
            counts > 0, np.diff(sums[cuts]) / np.maximum(counts, 1), levels
        )
        if force_zero:
            levels = with_zero(levels)
    return levels


def with_zero(levels: Floats) -> Floats:
    """The level nearest to zero becomes zero."""
    changed = levels.copy()
    changed[np.abs(levels).argmin()] = 0.0
    return changed


def halves_by_sign(levels: Floats) -> Floats:
    """Ascending levels whose lower half is not positive and whose upper half is not
    negative.
    """
    half = levels.shape[-1] // 2
    return np.concatenate(
        [np.minimum(levels[..., :half], 0.0), np.maximum(levels[..., half:], 0.0)],
        axis=-1,
    )


def squared_error(weights: Floats, levels: Floats) -> float:
    """The sum of squared distances to the nearest level."""
    nearest = levels[np.searchsorted(midpoints(levels), weights)]
    return float(np.square(weights - nearest).sum())


def representable(levels: Floats, form: TableFormat, *, force_zero: bool) -> Floats:
    """The levels as the format can store them."""
    if force_zero:
        levels = with_zero(levels)
    return form.round(halves_by_sign(levels) if form.sign_in_code else levels)
