"""Every call and way to pack stands in the page of the format with the kinds of its
arguments, and in the reader of the library.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tersify.runtime.portable.signatures import (
    ACTIVATIONS,
    CALLS,
    CHOICES,
    LENGTHS,
    PACKS,
)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "format.md").read_text()
SECTION = PAGE.partition("## 10. The plan")[2].partition("\n## ")[0]


def rows(head: str) -> dict[str, list[str]]:
    """The cells behind the first one, by each name in it."""
    table = SECTION.partition(f"| {head} |")[2].partition("\n\n")[0].splitlines()[2:]
    found = {}
    for line in table:
        first, *rest = (cell.strip() for cell in line.strip("|").split(" | "))
        for name in re.findall(r"`(\w+)`", first):
            found[name] = rest
    return found


def kinds_of(cells: list[str]) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", cells[0].replace("`", "")))


@pytest.mark.parametrize(
    ("head", "table"), [("call", CALLS), ("way to pack", PACKS)], ids=["calls", "packs"]
)
def test_the_page_of_the_format_has_the_table_of_the_program(
    head: str, table: dict[str, tuple[str, ...]]
) -> None:
    assert {name: kinds_of(cells) for name, cells in rows(head).items()} == table


def test_every_kind_of_argument_is_explained() -> None:
    used = {kind for kinds in (*CALLS.values(), *PACKS.values()) for kind in kinds}
    assert set(rows("kind")) == used


def test_lists_and_choices_have_the_sizes_that_the_page_says() -> None:
    said = {name: cells[0] for name, cells in rows("kind").items()}
    for kind, length in LENGTHS.items():
        assert f"list of {length}" in said[kind]
    for kind, (_, names) in CHOICES.items():
        numbers = re.findall(r"(?<![\w.])(\d) ", said[kind])
        assert numbers == [str(i) for i in range(len(names))]
    numbers = re.findall(r"(?<![\w.])(\d) \w", SECTION.partition("activations 0")[2])
    assert numbers[: len(ACTIVATIONS) - 1] == [
        str(i) for i in range(1, len(ACTIVATIONS))
    ]


@pytest.mark.parametrize(
    ("file", "table"), [("plan_calls.cpp", CALLS), ("plan.cpp", PACKS)]
)
def test_the_library_knows_every_name(
    file: str, table: dict[str, tuple[str, ...]]
) -> None:
    code = (ROOT / "csrc" / "lib" / file).read_text()
    assert [name for name in table if f'"{name}"' not in code] == []
