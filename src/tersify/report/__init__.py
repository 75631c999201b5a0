"""Run directories become one HTML page that needs nothing but a browser, and figures as
SVG files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

REPORT = "report.html"


def write_report(
    directories: Sequence[Path],
    *,
    out: Path | None = None,
    figures: Path | None = None,
    png: bool = False,
) -> Path:
    """Write the page of all runs in or below `directories`; into the first of them
    unless `out` says where.

    `figures` is a directory that also gets every figure of the page as an SVG file, and
    with `png` as a PNG beside it. Returns the page's path.
    """
    from tersify.codec.atomic import write_text
    from tersify.report.page import Page
    from tersify.report.raster import write_png
    from tersify.report.run_files import find_runs
    from tersify.report.sweep_figures import read_sweep

    found = {directory: read_sweep(directory) for directory in directories}
    sweeps = [sweep for sweep in found.values() if sweep is not None]
    # Of a sweep only the front's runs are shown one by one.
    places = [
        path
        for directory, sweep in found.items()
        for path in (sweep.runs() if sweep else []) or [directory]
    ]
    page = Page(find_runs(places), sweeps)
    target = directories[0] / REPORT if out is None else out
    write_text(target, page.html)
    if figures is not None:
        figures.mkdir(parents=True, exist_ok=True)
        for figure in page.figures:
            svg = figures / f"{figure.key}.svg"
            write_text(svg, figure.drawing.standalone(figure.title))
            if png:
                write_png(svg)
    return target
