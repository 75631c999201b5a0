"""HTML tables that the page's script sorts and copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tersify.report.svg import clean


@dataclass(frozen=True)
class Cell:
    """`value` sorts and is copied with full precision; `fraction` (0..1) draws a bar
    behind the text.
    """

    text: str
    value: float | None = None
    fraction: float | None = None
    swatch: int | None = None


def table(name: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Columns whose cells have values are numbers and stand to the right."""
    # A column is one of numbers as soon as one cell is: missing values stand among
    # them.
    numeric = [any(row[i].value is not None for row in rows) for i in range(len(heads))]
    head = "".join(
        f'<th scope="col"{_right(number)}><button type="button">{clean(text)}</button></th>'
        for text, number in zip(heads, numeric, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            _cell(cell, number) for cell, number in zip(row, numeric, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="table"><button type="button" class="copy" aria-label="Copy {clean(name)}">Copy</button>'
        f'<div class="scroll"><table><caption>{clean(name)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></div>"
    )


def _right(number: bool) -> str:
    return ' class="n"' if number else ""


def _cell(cell: Cell, number: bool) -> str:
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    bar = (
        ""
        if cell.fraction is None
        else f' style="--share:{100 * min(max(cell.fraction, 0), 1):.1f}%"'
    )
    swatch = (
        ""
        if cell.swatch is None
        else f'<i class="swatch" style="background:var(--s{cell.swatch})"></i>'
    )
    return f"<td{_right(number)}{value}{bar}>{swatch}{clean(cell.text)}</td>"
