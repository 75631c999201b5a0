"""What a setting may be: each check raises a ValueError with the setting's name, the
rule and the value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeGuard

from tersify.cpus import usable_cpus

Limits = ParamSpec("Limits")


def is_number_of(value: object, kinds: tuple[type, ...]) -> TypeGuard[int]:
    """A bool is an int to Python, and no number to whoever writes a setting."""
    return isinstance(value, kinds) and not isinstance(value, bool)


def check_given(
    check: Callable[Concatenate[str, object, Limits], None],
    what: str,
    value: object,
    *rest: Limits.args,
    **limits: Limits.kwargs,
) -> None:
    """The check, of a setting that may be left out: None passes."""
    if value is not None:
        check(what, value, *rest, **limits)


def check_choice(what: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{what} must be one of {', '.join(known)}, got {value!r}")


def check_range(
    what: str,
    value: object,
    *,
    low: float,
    high: float,
    low_open: bool = False,
    high_open: bool = False,
) -> None:
    """low ≤ value ≤ high, without an end that is open; anything that is not a number
    fails too.
    """
    # NaN fails as well, since every comparison with it is false.
    fits = is_number_of(value, (int, float)) and low <= value <= high
    if not fits or (low_open and value == low) or (high_open and value == high):
        span = f"{'(' if low_open else '['}{low:g}, {high:g}{')' if high_open else ']'}"
        raise ValueError(f"{what} must be in {span}, got {value!r}")


def check_whole(
    what: str, value: object, *, low: int | None = None, high: int | None = None
) -> None:
    """A whole number, from `low` on, or low ≤ value ≤ high; True and False are none."""
    if _is_whole_within(value, low, high):
        return
    if high is not None:
        rule = f"{low}..{high}"
    elif low is not None:
        rule = f"a whole number of at least {low}"
    else:
        rule = "a whole number"
    raise ValueError(f"{what} must be {rule}, got {value!r}")


def _is_whole_within(value: object, low: int | None, high: int | None) -> bool:
    if not is_number_of(value, (int,)):
        return False
    if low is not None and value < low:
        return False
    return high is None or value <= high


def check_threads(threads: object) -> None:
    """As many as there are processors, or two: thousands would only wait for each
    other, and take the machine along.
    """
    check_whole("threads", threads, low=1, high=max(2, usable_cpus()))
