import math

import pytest

from tersify import checks
from tersify.checks import check_choice, check_range, check_threads, check_whole


@pytest.mark.parametrize(
    ("ends", "inside", "outside", "span"),
    [
        ({}, [0, 0.5, 1], [-0.1, 1.1], r"\[0, 1\]"),
        ({"low_open": True}, [0.5, 1], [0, 1.1], r"\(0, 1\]"),
        ({"high_open": True}, [0, 0.5], [1, -0.1], r"\[0, 1\)"),
        ({"low_open": True, "high_open": True}, [0.5], [0, 1], r"\(0, 1\)"),
    ],
)
def test_a_range_has_open_and_closed_ends(ends, inside, outside, span):
    for value in inside:
        check_range("share", value, low=0, high=1, **ends)
    for value in [*outside, math.nan, True, "0.5", None]:
        with pytest.raises(ValueError, match=f"share must be in {span}, got {value!r}"):
            check_range("share", value, low=0, high=1, **ends)


def test_whole_numbers_and_choices_are_named_with_their_rule():
    check_whole("bits", 3, low=1, high=8)
    check_choice("fit", "best", ("best", "fast"))
    with pytest.raises(ValueError, match=r"bits must be 1\.\.8, got 9"):
        check_whole("bits", 9, low=1, high=8)
    with pytest.raises(
        ValueError, match=r"rows must be a whole number of at least 1, got 1\.0"
    ):
        check_whole("rows", 1.0, low=1)
    with pytest.raises(ValueError, match="fit must be one of best, fast, got 'slow'"):
        check_choice("fit", "slow", ("best", "fast"))


def test_threads_are_as_many_as_processors_at_the_most(monkeypatch):
    monkeypatch.setattr(checks, "usable_cpus", lambda: 16)
    check_threads(16)
    for count in (0, 17, "2"):
        with pytest.raises(
            ValueError, match=rf"threads must be 1\.\.16, got {count!r}"
        ):
            check_threads(count)
    monkeypatch.setattr(checks, "usable_cpus", lambda: 1)
    check_threads(2)
