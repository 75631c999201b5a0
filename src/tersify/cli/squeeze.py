"""`tersify squeeze`: fewer bytes for a trained network, every code decided by its bits
and its damage.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tersify.cli.common import (
    DATA_HELP,
    MaxDecodedBytes,
    Overwrite,
    Target,
    TargetOption,
    allowed,
    check_free,
    pairs,
)
from tersify.cli.completion import data_sets


def squeeze(
    file: Annotated[
        Path, typer.Argument(help="A .terse file, with plain or coded weights.")
    ],
    data: Annotated[str, typer.Option(help=DATA_HELP, autocompletion=data_sets)],
    out: Annotated[Path, typer.Option(help="The .terse file to write.")],
    drop: Annotated[
        float,
        typer.Option(
            help="Accuracy points that may be lost, measured on held-out training images."
        ),
    ] = 0.2,
    images: Annotated[
        int,
        typer.Option(
            min=1, help="Training images that measure how much each weight matters."
        ),
    ] = 512,
    held_out: Annotated[
        int,
        typer.Option(
            min=1, help="Other training images, on which the drop is measured."
        ),
    ] = 2000,
    noise: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Noise on those images, in units of their spread: for a network that was trained on them.",
        ),
    ] = 0.0,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of the data sets.")
    ] = None,
    target: Target = None,
    option: TargetOption = None,
    overwrite: Overwrite = False,
    max_decoded_bytes: MaxDecodedBytes = None,
) -> None:
    """Write FILE in fewer bytes, without training."""
    import tersify
    from tersify.lab import dataset
    from tersify.lab.squeeze import squeeze as find
    from tersify.lab.trainer import check_fits, load_network

    check_free(file, out, overwrite)
    net = load_network(
        file,
        target=target,
        options=pairs(option, "--option"),
        **allowed(max_decoded_bytes),
    )
    loaded = dataset(data, root=data_root)
    check_fits(net, loaded)
    found = find(
        net,
        loaded,
        drop=drop,
        images=images,
        held_out=held_out,
        noise=noise,
        tell=typer.echo,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    size = tersify.save(found.packed, out)
    typer.echo(
        f"{out}: {size:,} bytes, {file.stat().st_size:,} before; {found.accuracy:.2f} % of the held-out training "
        f"images, {found.accuracy_before:.2f} % before"
    )
