"""Counts the branches of every function, and names those that have most of them for
their length.

usage: python tools/branches.py [--most N]

A branch is an if, a loop, a handler, a conditional expression, an `and` or `or`, or a
comprehension's clause. Dense functions take long to read, so the package as a whole
must not become denser than `MOST_PER_100_LINES`.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
MOST_PER_100_LINES = 20.0
BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension)


class Function(NamedTuple):
    path: str
    name: str
    lines: int
    branches: int

    @property
    def density(self) -> float:
        return 100.0 * self.branches / self.lines


def branches_in(node: ast.AST) -> int:
    found = 0
    for inner in ast.walk(node):
        if isinstance(inner, BRANCHES):
            found += 1
        elif isinstance(inner, ast.BoolOp):
            found += len(inner.values) - 1
    return found


def functions_in(path: Path) -> Iterator[Function]:
    """Functions and methods; one inside another counts with it."""
    name = path.relative_to(ROOT).as_posix()
    ahead: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while ahead:
        for node in ast.iter_child_nodes(ahead.pop()):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert node.end_lineno is not None
                yield Function(
                    name,
                    node.name,
                    node.end_lineno - node.lineno + 1,
                    branches_in(node),
                )
            else:
                ahead.append(node)


def every_function() -> list[Function]:
    return [
        f for path in sorted((ROOT / "src").rglob("*.py")) for f in functions_in(path)
    ]


def density(functions: list[Function]) -> float:
    """Branches per 100 lines of functions."""
    return 100.0 * sum(f.branches for f in functions) / sum(f.lines for f in functions)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--most",
        type=int,
        default=20,
        help="so many of the densest functions of ten lines and more",
    )
    args = parser.parse_args()
    functions = every_function()
    long_enough = [f for f in functions if f.lines >= 10]
    for f in sorted(long_enough, key=lambda each: -each.density)[: args.most]:
        print(
            f"{f.density:5.1f}  {f.branches:3d} in {f.lines:3d} lines  {f.path}: {f.name}"
        )
    found = density(functions)
    print(
        f"{found:.1f} branches per 100 lines of functions; at most {MOST_PER_100_LINES:g}"
    )
    return 0 if found <= MOST_PER_100_LINES else 1


if __name__ == "__main__":
    sys.exit(main())
