"""`tersify report`: one HTML page of what runs measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    directories: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Run directories, or ones that hold some."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The page; report.html in the first directory by default."),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also write every figure here as SVG.")
    ] = None,
    png: Annotated[
        bool,
        typer.Option("--png", help="Also write those figures as PNG; needs chromium."),
    ] = False,
) -> None:
    """Write one self-contained page: headline figures, curves, layers, histograms,
    file, recipe; runs side by side.
    """
    from tersify.report import write_report

    if png and figures is None:
        raise ValueError(
            "--png draws the figures of --figures; give --figures DIR with it"
        )
    typer.echo(write_report(directories, out=out, figures=figures, png=png))
