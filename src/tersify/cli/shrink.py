"""`tersify shrink`: a file whose filters, neurons or heads are zero becomes a file of
smaller layers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tersify.cli.common import (
    MaxDecodedBytes,
    Overwrite,
    Shape,
    Target,
    TargetOption,
    Trust,
    check_free,
    network_and_input,
)


def shrink(
    file: Annotated[
        Path,
        typer.Argument(
            help="A .terse file of a network pruned by filters, neurons or heads."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The .terse file to write.")],
    target: Target = None,
    option: TargetOption = None,
    trust: Trust = False,
    shape: Shape = None,
    overwrite: Overwrite = False,
    max_decoded_bytes: MaxDecodedBytes = None,
) -> None:
    """Take the units out that give nothing; the outputs stay the same."""
    import tersify
    from tersify.shrinking import packed

    check_free(file, out, overwrite)
    # The input holds no zeros: what the small network is compared with must not be
    # silent by itself.
    model, example = network_and_input(
        file, target, option, shape, max_decoded_bytes, batch=2, trust=trust
    )
    small = tersify.shrink(model, example)
    before, after = (sum(p.numel() for p in m.parameters()) for m in (model, small))
    out.parent.mkdir(parents=True, exist_ok=True)
    size = tersify.save(packed(small, {"shrunk": True}), out)
    typer.echo(
        f"{out}: {after:,} of {before:,} parameters ({100 * after / before:.1f} %), "
        f"{size:,} of {file.stat().st_size:,} bytes"
    )
