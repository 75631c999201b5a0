"""`tersify inspect`: what is in a file, tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tersify.checks import is_number_of
from tersify.cli.common import MaxDecodedBytes, allowed

if TYPE_CHECKING:
    from rich.table import Table


def inspect(
    file: Annotated[Path, typer.Argument(help="A .terse file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    max_decoded_bytes: MaxDecodedBytes = None,
) -> None:
    """Per tensor: shape, levels, sparsity, entropy and bytes; and what the file says
    about itself.
    """
    from tersify import codec
    from tersify.cli.terminal_tables import plain, wide_console

    facts = codec.inspect(file, **allowed(max_decoded_bytes))
    if as_json:
        typer.echo(json.dumps(facts))
        return
    console = wide_console()
    tables = {key: value for key, value in facts.items() if _is_table(value)}
    for key, rows in tables.items():
        console.print(_table(key, rows))
    for key, value in facts.items():
        if key not in tables and value not in (None, "", {}, []):
            console.print(plain(f"{key}: {_text(value)}"), soft_wrap=True)


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A column for every key that occurs, in the order of their first occurrence."""
    from rich.table import Table

    from tersify.cli.terminal_tables import plain

    keys = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(*keys, title=title)
    for row in rows:
        table.add_row(*(plain(_text(row.get(key))) for key in keys))
    return table


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f}"
    if is_number_of(value, (int,)):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return "×".join(map(str, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(entry)}" for key, entry in value.items())
    return str(value).strip()
