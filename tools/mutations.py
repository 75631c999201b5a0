"""Small changes to a Python source, one at a time, each of which a good test should
notice.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
# Settings that make a program stricter or faster and change no result.
SILENT_KEYWORDS = {
    "strict",
    "stacklevel",
    "non_blocking",
    "max_workers",
    "repr",
    "timeout",
}


@dataclass(frozen=True)
class Mutant:
    path: str  # below src/tersify
    line: int
    before: str
    after: str
    source: str  # the whole file, changed
    # a number with a name of its own at the top of a file: another would be as right
    tuned: bool = False

    @property
    def key(self) -> str:
        return f"{self.path}:{self.line}:{hashlib.sha256(self.source.encode()).hexdigest()[:12]}"


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """Every mutant of the file."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    text, tree = source.encode(), ast.parse(source)
    tuned = {
        id(node)
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        and ast.unparse(statement.targets[0]).isupper()
        for node in ast.walk(statement)
    }
    for node in _mutable(tree):
        for after in _changes(node):
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            changed = text[:begin] + after.encode() + text[end:]
            yield Mutant(
                path,
                node.lineno,
                text[begin:end].decode(),
                after,
                changed.decode(),
                id(node) in tuned,
            )


def _mutable(tree: ast.AST) -> Iterator[ast.expr]:
    """Expressions that run: no annotation, decorator, assertion, text, or code for the
    type checker.
    """
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(
                child, (ast.Assert, ast.JoinedStr, ast.Raise)
            ):
                continue
            if isinstance(child, ast.keyword) and child.arg in SILENT_KEYWORDS:
                continue
            if (
                isinstance(child, ast.If)
                and isinstance(child.test, ast.Name)
                and child.test.id == "TYPE_CHECKING"
            ):
                continue
            if isinstance(child, ast.expr):
                yield child
            if isinstance(child, (ast.If, ast.While)):
                yield _Negated(child.test)
            yield from _mutable(child)


class _Negated(ast.expr):
    """The test of a branch, to be turned round."""

    def __init__(self, test: ast.expr) -> None:
        super().__init__()
        self.test = test
        ast.copy_location(self, test)


def _changes(node: ast.expr) -> Iterator[str]:
    if isinstance(node, _Negated):
        if not (
            isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
        ):
            yield f"(not ({ast.unparse(node.test)}))"
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
        yield _with(node, ops=[OPERATORS[type(node.ops[0])](), *node.ops[1:]])
    elif isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in OPERATORS:
        yield _with(node, op=OPERATORS[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.IfExp):
        yield _with(node, body=node.orelse, orelse=node.body)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield repr(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield f"({node.value!r} + 1)"
        yield f"({node.value!r} - 1)"


def _with(node: ast.expr, **fields: object) -> str:
    copy = type(node)(**{**dict(ast.iter_fields(node)), **fields})
    return f"({ast.unparse(ast.copy_location(copy, node))})"
