"""`tersify eval`: the accuracy of a file as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tersify.cli.common import (
    DATA_HELP,
    MaxDecodedBytes,
    Target,
    TargetOption,
    Trust,
    allowed,
    pairs,
    trusted,
)
from tersify.cli.completion import data_sets


def evaluate(
    file: Annotated[Path, typer.Argument(help="A .terse file.")],
    data: Annotated[str, typer.Option(help=DATA_HELP, autocompletion=data_sets)],
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of the data sets.")
    ] = None,
    target: Target = None,
    option: TargetOption = None,
    trust: Trust = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    max_decoded_bytes: MaxDecodedBytes = None,
) -> None:
    """Load FILE, run it in fp32 on the test set, and print top-1, top-3 and top-5."""
    from tersify.lab import dataset
    from tersify.lab.trainer import check_fits, load_network, pick_device
    from tersify.lab.trainer import evaluate as measure

    net = load_network(
        file,
        target=target,
        options=pairs(option, "--option"),
        trust=trusted(target, trust),
        **allowed(max_decoded_bytes),
    )
    loaded = dataset(data, root=data_root)
    where = pick_device(device)
    check_fits(net, loaded)
    figures = measure(net.to(where), loaded, loaded.test, device=where, amp=False)
    if as_json:
        typer.echo(
            json.dumps(
                figures
                | {"file_bytes": file.stat().st_size, "images": loaded.test.samples}
            )
        )
        return
    typer.echo(
        f"{file}: top-1 {figures['accuracy']:.2f} %, top-3 {figures['top3']:.2f} %, top-5 {figures['top5']:.2f} % "
        f"on the {loaded.test.samples:,} test images of {data}; {file.stat().st_size:,} bytes on disk"
    )
