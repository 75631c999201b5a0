"""Parameter: one field of a sweep and the values it may take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tersify.checks import is_number_of
from tersify.methods import nearest

KINDS = ("categorical", "uniform", "log", "int")
Value = bool | int | float | str | None


@dataclass(frozen=True)
class Parameter:
    """`choices` for a categorical one, else `low` … `high`; `points` is how many of
    them a grid takes.
    """

    field: str
    kind: str
    choices: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = 0.0
    points: int | None = None

    @classmethod
    def read(cls, field: str, given: object) -> Parameter:
        """From TOML: a list of choices, or a table such as { uniform = [0.3, 0.9],
        points = 4 }.
        """
        # A bare list is the short form of { categorical = […] }.
        if isinstance(given, list):
            given = {"categorical": given}
        if not isinstance(given, Mapping):
            raise ValueError(
                f"space: {field!r} must be a list of choices or a table such as {{ log = [1e-4, 1e-2] }}"
            )
        kinds = [key for key in given if key in KINDS]
        for key in given:
            if key not in (*KINDS, "points"):
                raise ValueError(
                    f"space: {field!r} has no key {key!r}; {nearest(key, [*KINDS, 'points'])}"
                )
        if len(kinds) != 1:
            raise ValueError(
                f"space: {field!r} needs one of {', '.join(KINDS)}, got {', '.join(kinds) or 'none'}"
            )
        return cls._of(field, kinds[0], given[kinds[0]], given.get("points"))

    @classmethod
    def _of(cls, field: str, kind: str, values: object, points: object) -> Parameter:
        if not isinstance(values, list) or not values:
            raise ValueError(f"space: {field!r} needs a list of values, got {values!r}")
        if kind == "categorical":
            _check_choices(field, values)
            return cls(field, kind, choices=tuple(values))
        _check_range(field, kind, values)
        if points is None:
            return cls(field, kind, low=values[0], high=values[1])
        if not is_number_of(points, (int,)) or points < 2:
            raise ValueError(
                f"space: {field!r}: points must be a whole number from 2 on, got {points!r}"
            )
        return cls(field, kind, low=values[0], high=values[1], points=points)

    def grid(self) -> list[Value]:
        """The values a grid visits."""
        if self.kind == "categorical":
            return list(self.choices)
        if self.kind == "int" and self.points is None:
            return list(range(int(self.low), int(self.high) + 1))
        if self.points is None:
            raise ValueError(
                f"a grid over {self.field!r} needs points = N beside {self.kind}, or a list of choices"
            )
        fractions = [i / (self.points - 1) for i in range(self.points)]
        if self.kind == "log":
            # Equal ratios between neighbours.
            return [
                self.low * (self.high / self.low) ** fraction for fraction in fractions
            ]
        values = [
            self.low + (self.high - self.low) * fraction for fraction in fractions
        ]
        return (
            list(dict.fromkeys(map(round, values)))
            if self.kind == "int"
            else list(values)
        )

    def ends(self) -> list[Value]:
        """Values that stand for all, to be tried before anything runs."""
        if self.kind == "categorical":
            return list(self.choices)
        return (
            [int(self.low), int(self.high)]
            if self.kind == "int"
            else [self.low, self.high]
        )

    def to_dict(self) -> dict[str, Any]:
        if self.kind == "categorical":
            return {"kind": self.kind, "choices": list(self.choices)}
        points = {} if self.points is None else {"points": self.points}
        return {"kind": self.kind, "low": self.low, "high": self.high, **points}


def _check_choices(field: str, values: list[Any]) -> None:
    # by repr: 1 and true are equal, and two choices
    if len(set(map(repr, values))) != len(values):
        raise ValueError(f"space: {field!r} names a choice twice: {values}")
    if not all(isinstance(value, (bool, int, float, str)) for value in values):
        raise ValueError(
            f"space: choices of {field!r} must be text, numbers, true or false, got {values}"
        )


def _check_range(field: str, kind: str, values: list[Any]) -> None:
    if not _is_range(kind, values):
        raise ValueError(
            f"space: {field!r} takes {kind} = [low, high] with low < high, got {values}"
        )
    if kind == "log" and values[0] <= 0:
        raise ValueError(
            f"space: {field!r} is logarithmic and must start above 0, got {values[0]}"
        )


def _is_range(kind: str, values: list[Any]) -> bool:
    """Whether the values are two finite numbers, the lower one first."""
    numbers = (int,) if kind == "int" else (int, float)
    if len(values) != 2 or not all(is_number_of(value, numbers) for value in values):
        return False
    low, high = values
    return -math.inf < low < high < math.inf
