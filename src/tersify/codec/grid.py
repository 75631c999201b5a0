"""Rows that are whole steps of their own scale: `value = whole number × scale`, exact
to the last bit.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

MAX_STEPS = 255  # the largest whole number that is looked for
SAMPLE_ROWS = 8
FEW_VALUES = 4  # of a row: hardly any wrong scale fits them all
MAX_WORK = 1 << 29  # quotients that are rounded and compared before the search gives up
CHUNK = 1 << 20


def has_scale(row: Tensor) -> bool:
    """Whether the values of one row are whole numbers times a scale."""
    if not bool(row.isfinite().all()) or not _near_steps(row):
        return False
    return scales_of(row[None], torch.ones(1, len(row), dtype=torch.bool)) is not None


def _near_steps(row: Tensor) -> bool:
    """Whether a few values are about whole numbers of a part of the largest one: a
    quick no for most rows.
    """
    few = row[:: max(1, len(row) // (2 * FEW_VALUES))].double().numpy()
    top = float(row.abs().max())
    if top == 0:
        return True
    facts = torch.finfo(row.dtype)
    number = np.arange(1, MAX_STEPS + 1)[:, None]
    steps = np.abs(number * (few / top))
    # Each value was rounded, the largest too, and subnormal ones to whole numbers.
    rounding = 2 * facts.eps * (steps + number * (facts.smallest_normal / top))
    return bool((np.abs(steps - np.rint(steps)) <= rounding).all(1).any())


def scales_of(values: Tensor, known: Tensor) -> tuple[Tensor, Tensor] | None:
    """Per row of `values` a scale, and the whole numbers; `known` says which entries
    count, the first ones of each row.

    None where a row has no such scale. The largest value of a row is some number of
    steps; as its product was rounded, the scale is its quotient or a neighbour of that.
    """
    if not bool(values.isfinite().all()):
        return None
    scale = torch.zeros(len(values), dtype=values.dtype)
    sample = torch.linspace(0, len(values) - 1, min(SAMPLE_ROWS, len(values))).long()
    every = torch.arange(1, MAX_STEPS + 1)
    # Most tensors have no scales: one row tells most of them, eight rows nearly all,
    # before every row is tried.
    for rows in (sample[:1], sample):
        steps = _solve(values, known, scale, rows, every)
        if not bool((scale[rows] != 0).all()):
            return None
    # Rows of one tensor mostly share the number of steps of their largest value, so
    # those that the sample met come first.
    _solve(values, known, scale, _unsolved(scale), steps.unique())
    left = _unsolved(scale)
    if len(left) * FEW_VALUES * MAX_STEPS > MAX_WORK:
        return None
    _solve(values, known, scale, left, every)
    if len(_unsolved(scale)):
        return None
    return scale, torch.where(known, _steps(values, scale[:, None]), 0)


def _solve(
    values: Tensor, known: Tensor, scale: Tensor, rows: Tensor, numbers: Tensor
) -> Tensor:
    """Fill in `scale` for the rows whose largest value is one of `numbers` steps, and
    give the numbers met.
    """
    met = [numbers[:0]]
    for some in rows.split(max(1, CHUNK // (3 * len(numbers) * FEW_VALUES))):
        top = torch.where(known[some], values[some].abs(), 0).amax(1)
        # A row of zeros fits any scale; 1 keeps 0 free to mean "not solved yet".
        scale[some[top == 0]] = 1
        some, top = some[top != 0], top[top != 0]
        # (rows, numbers): the scale if the largest value were so many steps.
        quotient = (top.double()[:, None] / numbers).to(values.dtype)
        # The value was rounded when scale · steps was computed, so the true scale may
        # be the float on either side of the quotient. Shape (rows, 3 · numbers).
        tried = torch.stack(
            [_neighbour(quotient, places) for places in (0, 1, -1)], 2
        ).flatten(1)
        # Few values of a row rule out nearly all scales.
        few = torch.arange(FEW_VALUES) * known[some].sum(1, keepdim=True) // FEW_VALUES
        fits = _fit(values[some].gather(1, few)[:, None], tried[:, :, None]).all(2)
        row, place = torch.nonzero(fits & (tried > 0), as_tuple=True)
        pairs = max(1, CHUNK // values.shape[1])
        whole = [
            (_fit(values[some[r]], tried[r, p][:, None]) | ~known[some[r]]).all(1)
            for r, p in zip(row.split(pairs), place.split(pairs), strict=True)
        ]
        row, place = row[torch.cat(whole)], place[torch.cat(whole)]
        # Scales are in order, and each row takes its first.
        first = torch.ones_like(row, dtype=torch.bool)
        first[1:] = row[1:] != row[:-1]
        row, place = row[first], place[first]
        scale[some[row]] = tried[row, place]
        # Three neighbours were tried for each number.
        met.append(numbers[place // 3])
    return torch.cat(met)


def _fit(values: Tensor, scale: Tensor) -> Tensor:
    # Compared bit for bit, since == would take −0.0 for 0.0.
    return _as_ints(_steps(values, scale) * scale) == _as_ints(values)


def _steps(values: Tensor, scale: Tensor) -> Tensor:
    return (values.double() / scale.double()).round().to(values.dtype)


def _neighbour(values: Tensor, places: int) -> Tensor:
    return (_as_ints(values) + places).view(values.dtype)


def _as_ints(values: Tensor) -> Tensor:
    return values.contiguous().view(
        {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.dtype.itemsize]
    )


def _unsolved(scale: Tensor) -> Tensor:
    return torch.nonzero(scale == 0).reshape(-1)
