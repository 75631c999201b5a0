"""The pages' tables and pictures, from the JSON files beside this one: `make pages`.

A table stands between `<!-- begin NAME -->` and `<!-- end NAME -->` in the README or in
a page of docs/results; a test fails where one is not what this writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import architecture_tables
import figures
import files
import gpu_tables
import lm_tables
import portable_tables
import recipe_tables
import reruns
import step_tables
import tables
import zoo_tables

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "accuracy-sparsity.svg"
PLACE = re.compile(r"(<!-- begin (\S+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)
TABLES = (
    tables.TABLES
    | files.TABLES
    | gpu_tables.TABLES
    | lm_tables.TABLES
    | portable_tables.TABLES
    | recipe_tables.TABLES
    | reruns.TABLES
    | step_tables.TABLES
    | zoo_tables.TABLES
    | architecture_tables.TABLES
)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs" / "results").glob("*.md"))]


def filled(text: str) -> str:
    """A page with every table written anew."""

    def anew(place: re.Match[str]) -> str:
        if place[2] not in TABLES:
            raise ValueError(
                f"there is no table {place[2]!r}; there are {', '.join(TABLES)}"
            )
        return f"{place[1]}{TABLES[place[2]]()}\n{place[3]}"

    return PLACE.sub(anew, text)


def check_places(texts: Mapping[Path, str]) -> None:
    """Every table must have a place, so that none is lost when a page is written again."""
    found = {place[2] for text in texts.values() for place in PLACE.finditer(text)}
    if lost := TABLES.keys() - found:
        raise ValueError(
            f"no page has a place for the table {min(lost)!r}; write <!-- begin NAME --> and end there"
        )


def main() -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in pages()}
    check_places(texts)
    for page, text in texts.items():
        page.write_text(filled(text), encoding="utf-8")
    PICTURE.write_text(tables.picture(), encoding="utf-8")
    figures.main()


if __name__ == "__main__":
    main()
