"""`tersify inspect`: what is in a file, tensor by tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def inspect(
    file: Annotated[Path, typer.Argument(help="A .terse file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Per tensor: shape, levels, sparsity, entropy and bytes."""
