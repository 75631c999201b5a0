"""Numbers of a plan that change with the batch or the length: exact polynomials of both,
found from plans of several sizes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from tersify.codec.errors import TerseFileError

MOST_TERMS = 16
LARGEST = 1 << 48
POWERS = frozenset(range(5))
DIVISORS, FACTORS = range(1, LARGEST + 1), range(-LARGEST, LARGEST + 1)


class Sizes(NamedTuple):
    batch: int
    length: int


class Lengths(NamedTuple):
    """least, least + step, least + 2·step, … up to the most, where there is one."""

    least: int
    step: int
    most: int | None

    def check(self, length: int) -> None:
        end = LARGEST if self.most is None else self.most
        if length not in range(self.least, end + 1, self.step):
            raise ValueError(f"the plan runs {self.describe()}, got {length}")

    def describe(self) -> str:
        end = "or more" if self.most is None else f"to {self.most}"
        steps = f" in steps of {self.step}" if self.step > 1 else ""
        return f"lengths {self.least} {end}{steps}"


class Grid:
    """One or two batches × one or three lengths at equal steps, and the polynomials
    through numbers of these points.
    """

    def __init__(self, batches: Sequence[int], lengths: Sequence[int]) -> None:
        self.points = [Sizes(*both) for both in itertools.product(batches, lengths)]
        self._batches = batches
        self._lengths = lengths

    def through(self, numbers: Sequence[int]) -> dict[str, Any] | None:
        """Of the points, in order; none where all of it is zero."""
        count = len(self._lengths)
        low = _quadratic(self._lengths, numbers[:count])
        high = _quadratic(self._lengths, numbers[-count:])
        apart = self._batches[-1] - self._batches[0] or 1
        slopes = [(b - a) / apart for a, b in zip(low, high, strict=True)]
        begins = [a - m * self._batches[0] for a, m in zip(low, slopes, strict=True)]
        found = [
            *((c, 0, i) for i, c in enumerate(begins)),
            *((c, 1, i) for i, c in enumerate(slopes)),
        ]
        over = math.lcm(*(c.denominator for c, _, _ in found))
        terms = [[int(c * over), *powers] for c, *powers in found if c]
        return (
            {"terms": terms} | ({"over": over} if over > 1 else {}) if terms else None
        )

    def holds(
        self, size: dict[str, Any], points: Sequence[Sizes], numbers: Sequence[int]
    ) -> bool:
        try:
            return [whole(size, point) for point in points] == list(numbers)
        except TerseFileError:
            return False  # it is not whole, or larger than a plan may say


def evaluated(x: Any, sizes: Sizes) -> Any:
    """The arguments with whole numbers in the places of polynomials."""
    if isinstance(x, list):
        return [evaluated(part, sizes) for part in x]
    return whole(x, sizes) if isinstance(x, dict) else x


def whole(polynomial: dict[str, Any], sizes: Sizes) -> int:
    match polynomial:
        case {"terms": [_, *_] as terms} if len(terms) <= MOST_TERMS:
            total = sum(_term(term, sizes) for term in terms)
        case _:
            raise TerseFileError("a size of the plan has no terms, or too many")
    over = polynomial.get("over", 1)
    if over not in DIVISORS or total % over or abs(total // over) > LARGEST:
        raise TerseFileError(
            "a size of the plan is not whole, or too large, for this length"
        )
    return int(total // over)


def _term(term: Any, sizes: Sizes) -> int:
    match term:
        case [int(factor), int(batch), int(length)] if (
            factor in FACTORS and {batch, length} <= POWERS
        ):
            return int(factor * sizes.batch**batch * sizes.length**length)
    raise TerseFileError(
        "a term of a size is a factor and the powers of the batch and the length"
    )


def _quadratic(xs: Sequence[int], ys: Sequence[int]) -> list[Fraction]:
    """Its coefficients, from that of 1 upwards."""
    if len(xs) == 1:
        return [Fraction(ys[0])]
    step = xs[1] - xs[0]
    second = Fraction(ys[2] - 2 * ys[1] + ys[0], 2 * step * step)
    slope = Fraction(ys[1] - ys[0], step) - second * (xs[0] + xs[1])
    return [ys[0] - slope * xs[0] - second * xs[0] ** 2, slope, second]
