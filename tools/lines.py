"""Draws random lines of the tree without their path: whoever knows only the names of
files guesses where each stands.

usage: python tools/lines.py [--count N] [--seed N] [--answers]

A tree with good names lets a stranger name the folder of every line and the file of
most. A line is shown as a traceback would show it: the function it stands in, and the
whole of a statement that the formatter cut in pieces. The same seed draws the same
lines of the same sources, so `--answers` shows afterwards where they stand; any file
that holds the same text is a right answer.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "csrc")
SUFFIXES = (".py", ".cpp", ".hpp")
# Shorter lines, imports and signatures of private helpers say nothing about where they
# stand, in any project.
LEAST_CHARACTERS = 30
SILENT_STARTS = (
    "@",
    "__all__",
    "import ",
    "from ",
    "#include",
    "//",
    "#",
    '"',
    "'",
    "return None",
    "raise NotImplementedError",
)


# A table or a long text says enough in this many lines.
MOST_LINES = 5


class Line(NamedTuple):
    path: str
    number: int
    text: str


def telling_lines(path: Path) -> list[Line]:
    """The lines of a file that are long enough to say something."""
    name = path.relative_to(ROOT).as_posix()
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    is_python = path.suffix == ".py"
    whole = statements(source) if is_python else {}
    functions = python_functions(source) if is_python else cpp_functions(lines)
    return [
        Line(
            name,
            number,
            f"{functions.get(number, '')}: {shown(lines, number, whole.get(number))}",
        )
        for number, text in enumerate(lines, 1)
        if len(text.strip()) >= LEAST_CHARACTERS
        and not text.strip().startswith(SILENT_STARTS)
    ]


def statements(source: str) -> dict[int, range]:
    """For every line the lines of its statement; of a block, those of its head."""
    found: dict[int, range] = {}
    # Outer statements come first, so the inner ones have the last word.
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            lines = range(node.lineno, max(end, node.lineno) + 1)
            found.update((number, lines) for number in lines)
    return found


def python_functions(source: str) -> dict[int, str]:
    """For every line the function or class it stands in."""
    found: dict[int, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            end = node.end_lineno or node.lineno
            outer = found.get(node.lineno)
            name = f"{outer}.{node.name}" if outer else node.name
            found.update((n, name) for n in range(node.lineno + 1, end + 1))
    return found


def cpp_functions(lines: list[str]) -> dict[int, str]:
    """For every line of C++ what it stands in, by the indentation of clang-format: the
    last line at the margin that opened a function or a structure.
    """
    found, name = {}, ""
    for number, text in enumerate(lines, 1):
        at_margin = re.match(
            r"(?:[\w:<>,*& ]*?)([\w:~]+)(?: final)?(?:\(| \{$| : )", text
        )
        if at_margin and not text.startswith((" ", "namespace", "using")):
            name = at_margin[1]
        elif text.startswith("}"):
            name = ""
        else:
            found[number] = name
    return found


def shown(lines: list[str], number: int, statement: range | None) -> str:
    """The line, or the part of its statement that surrounds it."""
    if statement is None or len(statement) == 1:
        return lines[number - 1].strip()
    first = max(statement.start, min(number - 2, statement.stop - MOST_LINES))
    last = min(first + MOST_LINES, statement.stop)
    return " ".join(lines[i - 1].strip() for i in range(first, last))


def places(line: Line, lines: list[Line]) -> Iterator[str]:
    """Where the line stands, and where else the same text does."""
    yield f"{line.path}:{line.number}"
    yield from sorted(
        {other.path for other in lines if other.text == line.text} - {line.path}
    )


def every_file() -> list[list[Line]]:
    """The telling lines of every source that has some."""
    files = sorted(
        p
        for folder in FOLDERS
        for p in (ROOT / folder).rglob("*")
        if p.suffix in SUFFIXES
    )
    return [lines for lines in map(telling_lines, files) if lines]


def drawn(telling: list[list[Line]], count: int, seed: int) -> list[Line]:
    """One line each of `count` files, where there are as many: a long file is no
    likelier than a short one.
    """
    chance = random.Random(seed)
    return [
        chance.choice(lines)
        for lines in chance.sample(telling, min(count, len(telling)))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--answers", action="store_true", help="where the lines stand")
    args = parser.parse_args()
    telling = every_file()
    every_line = [line for lines in telling for line in lines]
    for index, line in enumerate(drawn(telling, args.count, args.seed), 1):
        print(f"{index:3d}  {line.text}")
        if args.answers:
            print("    ", " ".join(places(line, every_line)))


if __name__ == "__main__":
    main()
