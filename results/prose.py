"""Figures in prose: each must be in a record that its paragraph names.

    python results/prose.py        prints those that are not

A paragraph names a record by its file (`results/NAME.json`) or by the command that made
it (`tersify reproduce NAME`, `python benchmarks/NAME.py`). A figure is a number with a
decimal point, or one before %, times, points, a unit of time or of size. It is in the
record where one of its numbers is that when rounded; shares may be told in percent,
seconds in ms, ms in µs. Tables and sentences that tables.py writes are left out, and
code is. What is a setting, a definition or somebody else's figure stands in
`prose.json`, with what it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
# The pages that tell of measurements; the others define, and their examples run.
TELLING = (
    "how-to/collection",
    "how-to/scale",
    "explanation/fpga",
    "explanation/limits",
    "explanation/runtime",
)
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in TELLING),
    *sorted((ROOT / "docs" / "results").glob("*.md")),
)
UNITS = r"%|times\b|points\b|µs|ms\b|s\b|GB\b|MB\b|KB\b|bytes\b|minutes?\b|seconds?\b"
FIGURE = re.compile(
    rf"(?<![\w.\[#/=^-])(\d[\d,]*\.\d+(?:e-?\d+)?|\d[\d,]*(?=(?: and \d+)? ?(?:{UNITS})))(?![\w])"
)
# what a run passed through, and what it was told
NO_RESULTS = ("curve", "latents", "settings", "versions")
NAMED = re.compile(
    r"results/([\w-]+)(?:\*)?\.json|tersify reproduce ([\w-]+)|benchmarks/(\w+)\.py"
)


def main() -> None:
    for page in PAGES:
        for figure, paragraph in unheld(page.read_text(encoding="utf-8"), page.name):
            print(
                f"{page.relative_to(ROOT)}: {figure} in: {' '.join(paragraph.split())[:100]}…"
            )


def unheld(text: str, page: str) -> Iterator[tuple[str, str]]:
    """The figures that no record of their paragraph holds."""
    known = allowed(page)
    held: set[str] = set()
    for paragraph in paragraphs(text):
        # a table belongs to the paragraph in front of it
        if not paragraph.startswith("|"):
            named = {
                one.replace("_", "-")
                for match in NAMED.finditer(paragraph)
                for one in match.groups()
                if one
            }
            held = {text for name in named for text in numbers_of(name)}
        prose = re.sub(r"`[^`]*`", "", paragraph)
        for match in FIGURE.finditer(prose):
            figure = match[1].replace(",", "")
            unit = prose[match.end() :].lstrip()[:2]
            scaled = f"{figure} {unit[:1] if unit[:1] == '%' else unit}"
            if figure not in held and scaled not in held and figure not in known:
                yield match[1], paragraph


def paragraphs(text: str) -> list[str]:
    """Of the text without code and without what is generated."""
    text = re.sub(r"<!-- begin (\S+) -->.*?<!-- end \1 -->", "", text, flags=re.DOTALL)
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return [part for part in re.split(r"\n\s*\n", text) if part.strip()]


def numbers_of(name: str) -> set[str]:
    """Every number of the records NAME.json and NAME-….json, as it may be written."""
    files = [
        file
        for file in HERE.glob(f"{name}*.json")
        if file.stem == name or file.stem.startswith(f"{name}-")
    ]
    return {
        text
        for file in files
        for value in _leaves(json.loads(file.read_bytes()))
        for text in written(value)
    }


def written(value: float) -> Iterator[str]:
    size = abs(value)
    for digits in range(5):
        yield f"{size:.{digits}f}"
        yield f"{100 * size:.{digits}f} %"
        yield from (f"{1000 * size:.{digits}f} {unit}" for unit in ("µs", "ms"))
        mantissa, _, exponent = f"{size:.{digits}e}".partition("e")
        yield f"{mantissa}e{int(exponent)}"


def _leaves(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for key, entry in value.items():
            if key not in NO_RESULTS and not key.endswith("loss"):
                yield from _leaves(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _leaves(entry)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value


def allowed(page: str) -> set[str]:
    """Settings, definitions and published figures of a page, from prose.json: page →
    figure → what it is.
    """
    file = HERE / "prose.json"
    table = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {
        figure.replace(",", "")
        for figure in (table.get("everywhere", {}) | table.get(page, {}))
    }


if __name__ == "__main__":
    main()
