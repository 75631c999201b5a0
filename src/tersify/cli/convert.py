"""`tersify convert`: a GGUF file as a `.terse` file, every bit kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tersify.cli.common import Overwrite, check_free


def convert(
    file: Annotated[Path, typer.Argument(help="A GGUF file of a language model.")],
    out: Annotated[Path, typer.Option(help="The .terse file to write.")],
    overwrite: Overwrite = False,
) -> None:
    """Write the weights of a GGUF file as they are, coded by entropy, with their
    tokenizer.
    """
    import tersify
    from tersify.lab.gguf import packed_gguf

    check_free(file, out, overwrite)
    if not file.is_file():
        raise ValueError(f"no GGUF file {str(file)!r}")
    out.parent.mkdir(parents=True, exist_ok=True)
    packed = packed_gguf(file)
    size = tersify.save(packed, out)
    before = file.stat().st_size
    typer.echo(
        f"{out}: {size:,} bytes, {100 * size / before:.1f} % of the GGUF file, the same weights"
    )
