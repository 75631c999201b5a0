"""`tersify shrink`: a file whose filters, neurons or heads are zero becomes a file of smaller layers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tersify.cli.common import pairs


def shrink(
    file: Annotated[Path, typer.Argument(help="A .terse file of a network pruned by filters, neurons or heads.")],
    out: Annotated[Path, typer.Option(help="The .terse file to write.")],
    target: Annotated[
        str | None, typer.Option(help="What the network is, where the file does not name a reference network.")
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for --target; repeatable.")] = None,
    shape: Annotated[str | None, typer.Option(help="Shape of one input, such as 3,32,32.")] = None,
) -> None:
    """Take the units out that give nothing; the outputs stay the same."""
    import torch

    import tersify
    from tersify.cli.bench import input_shape
    from tersify.lab.trainer import load_network
    from tersify.shrinking import packed

    if out.resolve() == file.resolve():
        raise ValueError(f"--out is the file itself, {file}; give it another name")
    model = load_network(file, target=target, options=pairs(option, "--option"))
    example = torch.zeros(2, *input_shape(file, shape))
    small = tersify.shrink(model, example)
    before, after = (sum(p.numel() for p in m.parameters()) for m in (model, small))
    size = tersify.save(packed(small, {"shrunk": True}), out)
    typer.echo(
        f"{out}: {after:,} of {before:,} parameters ({100 * after / before:.1f} %), "
        f"{size:,} of {file.stat().st_size:,} bytes"
    )
