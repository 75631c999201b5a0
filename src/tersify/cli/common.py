"""What several commands share: KEY=VALUE pairs, recipes by name, and the way out on Ctrl-C."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tersify.cli import INTERRUPTED
from tersify.toml import read_toml

if TYPE_CHECKING:
    from tersify.recipe import Recipe

MaxDecodedBytes = Annotated[
    int | None, typer.Option(min=1, help="The most memory a .terse file may decode to; 16 GiB by default.")
]


def allowed(max_decoded_bytes: int | None) -> dict[str, int]:
    """The limit as an argument for the codec, which knows the default."""
    return {} if max_decoded_bytes is None else {"max_decoded_bytes": max_decoded_bytes}


def pairs(given: Sequence[str] | None, flag: str) -> dict[str, Any]:
    """`KEY=VALUE` strings; a value is read as TOML (numbers, lists, true), and as text where it is none."""
    result: dict[str, Any] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{flag} takes KEY=VALUE, got {text!r}; for example {flag} width=2")
        try:
            result[key.strip()] = read_toml(f"value = {value}", flag)["value"]
        except ValueError:
            result[key.strip()] = value.strip()
    return result


def load_recipe(name: str) -> Recipe | None:
    """A ready recipe's name or a TOML file; `none` trains the network as it is."""
    from tersify.recipe import Recipe

    return None if name == "none" else Recipe.load(name)


@contextlib.contextmanager
def resumable(context: typer.Context, out: Path) -> Iterator[None]:
    """Ctrl-C inside leaves with the command that goes on from the last checkpoint."""
    try:
        yield
    except KeyboardInterrupt:
        arguments = [a for a in context.obj if a != "--resume"]
        typer.echo(
            f"\nStopped; finished epochs are kept in {out}. Go on with:\n"
            f"  tersify {shlex.join([*arguments, '--resume'])}",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None
