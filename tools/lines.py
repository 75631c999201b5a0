"""Draws random lines of the tree without their path: whoever knows only the names of
files guesses where each stands.

usage: python tools/lines.py [--count N] [--seed N] [--answers]

A tree with good names lets a stranger name the folder of every line and the file of
most. The same seed draws the same lines of the same sources, so `--answers` shows
afterwards where they stand.
"""

from __future__ import annotations

import argparse
import random
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


class Line(NamedTuple):
    path: str
    number: int
    text: str


def telling_lines(path: Path) -> list[Line]:
    """The lines of a file that are long enough to say something."""
    name = path.relative_to(ROOT).as_posix()
    numbered = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    return [
        Line(name, number, text.strip())
        for number, text in numbered
        if len(text.strip()) >= LEAST_CHARACTERS
        and not text.strip().startswith(SILENT_STARTS)
    ]


def drawn(count: int, seed: int) -> list[Line]:
    """One line each of `count` files, where there are as many: a long file is no
    likelier than a short one.
    """
    files = sorted(
        p
        for folder in FOLDERS
        for p in (ROOT / folder).rglob("*")
        if p.suffix in SUFFIXES
    )
    chance = random.Random(seed)
    telling = [lines for lines in map(telling_lines, files) if lines]
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
    for index, line in enumerate(drawn(args.count, args.seed), 1):
        print(f"{index:3d}  {line.text}")
        if args.answers:
            print(f"     {line.path}:{line.number}")


if __name__ == "__main__":
    main()
