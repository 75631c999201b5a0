"""From the weights of one tensor to its table: the format, the levels and the edges
between them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tersify.methods.lookup.optimal import Moments, optimal_table
from tersify.methods.lookup.range_split import (
    interval_means,
    largest_shift,
    lloyd,
    midpoints,
    range_split,
    representable,
    squared_error,
    uniform_levels,
)
from tersify.tensor.lookup_table import Floats, TableFormat

if TYPE_CHECKING:
    from tersify.methods.lookup.lookup import Lookup

MOST_FRACTION_BITS = 16


@dataclass(frozen=True, eq=False)
class Fitted:
    """`levels` are (tables, 2^n), ascending; `edges` part them. `saturated` weights lie
    beyond the format.
    """

    format: TableFormat
    levels: Floats
    edges: Floats
    saturated: int


def fit_table(rows: Floats, method: Lookup, importance: Floats | None = None) -> Fitted:
    """One table for each row of weights, all of one format."""
    form = TableFormat(
        n=method.n,
        m=method.m,
        sign_in_code=method.sign_in_code,
        integer_bits=integer_bits(rows, method.integer_bits),
    )
    low, high = form.lowest * form.step, form.highest * form.step
    # Weights beyond ±2^integer_bits have no word, and get the outermost one.
    reach = 2.0**form.integer_bits
    # Counted on the weights as they came, before the clip below hides them.
    saturated = int((rows > reach).sum() + (rows < -reach).sum())
    if method.placement == "uniform":
        return _uniform(np.clip(rows, low, high), method, form, saturated)
    if method.fit in ("optimal", "sensitivity"):
        return _optimal(rows, method, form, importance, saturated)
    return _split(np.clip(rows, low, high), method, form, saturated)


def integer_bits(rows: Floats, given: int | None) -> int:
    """As many bits before the point as the largest weight needs; fewer than none for
    small weights.
    """
    if given is not None:
        return given
    # ⌈log2 largest⌉ bits before the point; the lower bound keeps the step within
    # MOST_FRACTION_BITS fraction bits. A weight of zeros needs none.
    largest = max(-float(rows.min()), float(rows.max()))
    return max(math.ceil(math.log2(largest)), -MOST_FRACTION_BITS) if largest else 0


def shifts(method: Lookup) -> range:
    """The shifts to try."""
    if not method.shift:
        return range(1)
    return (
        range(method.k, method.k + 1)
        if method.k is not None
        else range(most_shift(method) + 1)
    )


def most_shift(method: Lookup) -> int:
    return MOST_FRACTION_BITS - method.m


def _uniform(rows: Floats, method: Lookup, form: TableFormat, saturated: int) -> Fitted:
    if method.shift:
        found = largest_shift(
            float(np.abs(rows).max()), form.integer_bits, most_shift(method)
        )
        form = replace(form, k=found if method.k is None else method.k)
    levels = form.round(uniform_levels(form.n, 2.0 ** (form.integer_bits - form.k)))[
        None
    ].repeat(len(rows), 0)
    return Fitted(form, levels, midpoints(levels), saturated)


def _optimal(
    rows: Floats,
    method: Lookup,
    form: TableFormat,
    importance: Floats | None,
    saturated: int,
) -> Fitted:
    tried = shifts(method)
    # Half of the finest step that is tried: every midpoint of two levels of any k then
    # lies on the grid of moments.
    spacing = replace(form, k=tried[-1]).fine_step / 2
    weighted = (
        [None] * len(rows) if importance is None else list(map(_floored, importance))
    )
    reach = 2.0**form.integer_bits
    moments = [
        Moments(row, weight, spacing, reach)
        for row, weight in zip(rows, weighted, strict=True)
    ]
    form, levels = optimal_table(
        moments, form, tried, ratio=method.ratio, force_zero=method.force_zero
    )
    return Fitted(form, levels, midpoints(levels), saturated)


def _floored(importance: Floats) -> Floats:
    """No weight counts for nothing: a gradient that the calibration never showed may
    come.
    """
    mean = float(importance.mean())
    # A tenth of the mean is small beside a typical importance and large beside zero.
    return importance + 0.1 * mean if mean > 0 else np.ones_like(importance)


def _split(rows: Floats, method: Lookup, form: TableFormat, saturated: int) -> Fitted:
    edges, levels, reach = [], [], 0.0
    for row in rows:
        cuts, low, high = range_split(
            row, method.n, method.ratio or 1.0, method.p_start, method.p_stop
        )
        edges.append(cuts)
        levels.append(interval_means(row, cuts))
        # The words of the internal partition must reach its widest border over all
        # rows.
        reach = max(reach, abs(low), abs(high))
    if method.fit == "lloyd":
        levels = [
            lloyd(row, start, force_zero=method.force_zero)
            for row, start in zip(rows, levels, strict=True)
        ]
        form = _best_shift(rows, levels, method, form)
    elif method.shift:
        found = largest_shift(reach, form.integer_bits, most_shift(method))
        form = replace(form, k=found if method.k is None else method.k)
    # Rounding, or the forced zero, may swap two neighbouring levels.
    stored = np.sort(
        np.stack(
            [representable(row, form, force_zero=method.force_zero) for row in levels]
        ),
        axis=1,
    )
    return Fitted(
        form,
        stored,
        # The paper codes a weight by the interval it was fitted in; all other fits take
        # the nearest stored word.
        np.stack(edges) if method.fit == "paper" else midpoints(stored),
        saturated,
    )


def _best_shift(
    rows: Floats, levels: list[Floats], method: Lookup, form: TableFormat
) -> TableFormat:
    def error(shifted: TableFormat) -> float:
        stored = [
            np.sort(representable(row, shifted, force_zero=method.force_zero))
            for row in levels
        ]
        return sum(
            squared_error(row, table) for row, table in zip(rows, stored, strict=True)
        )

    return min((replace(form, k=k) for k in shifts(method)), key=error)
