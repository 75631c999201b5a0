"""An experiment's figures, drawn from its run directories as SVG files.

A `[[figures]]` table names the file (`key`), its `title` and its `kind`:

    epochs    the history's `y` over the epochs, one line a row (the mean of its seeds), past the fraction `skip`
    plane     the metric `y` against the metric `x`, one point a run and the published ones
    bars      the metric `y` of each row, the mean of its seeds
    latents   the latents of one `row` with their threshold
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tersify.codec.atomic import write_text
from tersify.lab.experiments.experiment_file import Experiment, Row, run_path
from tersify.report.bar_charts import Bar, columns, steps
from tersify.report.line_charts import Line, Point, lines, scatter, with_legend
from tersify.report.run_files import Run, read_run
from tersify.report.run_graphics import pooled_latents
from tersify.report.svg import Drawing, color

FOLDER = "figures"


def draw(experiment: Experiment, out: Path) -> list[Path]:
    """Every figure of the experiment in `out/figures`; returns the files."""
    if not experiment.figures:
        return []
    runs = {
        row.id: [
            read_run(path, row.name)
            for seed in experiment.seeds_of(row)
            if (path := run_path(out, row.id, seed)).is_dir()
        ]
        for row in experiment.rows
    }
    home = out / FOLDER
    home.mkdir(exist_ok=True)
    written = []
    for table in experiment.figures:
        drawing = _KINDS[table["kind"]](experiment, runs, table)
        if drawing is not None:
            written.append(home / f"{table['key']}.svg")
            write_text(written[-1], drawing.standalone(table["title"]))
    return written


def _epochs(
    experiment: Experiment, runs: Mapping[str, list[Run]], table: Mapping[str, Any]
) -> Drawing | None:
    series = []
    for index, row in enumerate(experiment.rows):
        histories = [run.column(table["y"]) for run in runs[row.id]]
        histories = [(xs, ys) for xs, ys in histories if xs]
        if histories:
            xs = histories[0][0]
            means = [
                statistics.fmean(values)
                # Not strict: seeds of an unfinished experiment differ in length, and
                # the mean ends with the shortest.
                for values in zip(*(ys for _, ys in histories), strict=False)
            ]
            start = int(table.get("skip", 0.0) * len(means))
            series.append(
                Line(
                    name=row.name,
                    run=index,
                    xs=xs[start : len(means)],
                    ys=means[start:],
                )
            )
    if not series:
        return None
    return with_legend(
        lines(table["key"], series), [(line.name, line.run) for line in series]
    )


def _plane(
    experiment: Experiment, runs: Mapping[str, list[Run]], table: Mapping[str, Any]
) -> Drawing | None:
    x, y = table["x"], table["y"]
    points = []
    for index, row in enumerate(experiment.rows):
        for run in runs[row.id]:
            at, value = run.metrics.get(x), run.metrics.get(y)
            if at is not None and value is not None:
                points.append(Point(name="", x=at, y=value, run=index, tip=row.name))
        points += _published(row, x, y)
    shown = [
        (row.name, index) for index, row in enumerate(experiment.rows) if runs[row.id]
    ]
    if not points:
        return None
    return with_legend(
        scatter(table["key"], points, [], x_label=table.get("x_label", x)), shown
    )


def _published(row: Row, x: str, y: str) -> list[Point]:
    at, value = row.published.get(x), row.published.get(y)
    if isinstance(at, (int, float)) and isinstance(value, (int, float)):
        return [Point(name=f"{row.name}, published", x=at, y=value)]
    return []


def _bars(
    experiment: Experiment, runs: Mapping[str, list[Run]], table: Mapping[str, Any]
) -> Drawing | None:
    bars = []
    for row in experiment.rows:
        values = [
            run.metrics[table["y"]] for run in runs[row.id] if table["y"] in run.metrics
        ]
        if values:
            bars.append(
                Bar(name=row.name, value=statistics.fmean(values), tip=row.name)
            )
    return (
        columns(bars, hue=color(0), named=True, x_label=table.get("x_label", ""))
        if bars
        else None
    )


def _latents(
    experiment: Experiment, runs: Mapping[str, list[Run]], table: Mapping[str, Any]
) -> Drawing | None:
    """All latents of the row's first seed; the pale ones inside ±Δ are zeros of the
    network.
    """
    for run in runs.get(table["row"], ()):
        histogram = pooled_latents(run.latents)
        if histogram is not None:
            edges, counts = histogram
            threshold = run.history[-1].get("Δ") if run.history else None
            return steps(
                edges,
                counts,
                hue=color(0),
                x_label="latent weight",
                threshold=threshold,
                tips=False,
            )
    return None


_KINDS = {"epochs": _epochs, "plane": _plane, "bars": _bars, "latents": _latents}
