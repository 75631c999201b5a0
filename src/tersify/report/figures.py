"""Which figures a set of runs has: over the epochs, and in the planes of accuracy
against sparsity and entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tersify.report.line_charts import PERCENT, Line, Point, lines, scatter
from tersify.report.number_text import bits, percent
from tersify.report.published import PublishedTable, published_tables
from tersify.report.run_files import Run
from tersify.report.svg import Drawing


@dataclass(frozen=True, kw_only=True)
class Figure:
    """`key` names the figure in the page and its file; the note says what the eye
    cannot see.
    """

    key: str
    title: str
    drawing: Drawing
    note: str = ""


_OVER_EPOCHS = {
    "accuracy": ("Test accuracy, %", PERCENT),
    "sparsity": ("Zeros, %", PERCENT),
    "entropy_bits": ("Entropy, bits per weight", " bit"),
    "loss": ("Training loss", ""),
    "lr": ("Learning rate", ""),
}
_UNDRAWN = ("epoch", "seconds", "test_loss", "top3", "top5", "train_accuracy")


def dense_accuracy(run: Run, runs: Sequence[Run]) -> float | None:
    """The dense twin's accuracy: as the run gives it, else of a dense run of the same
    network in the page.
    """
    own = run.figure("dense_accuracy")
    if own is not None or not run.is_compressed or not run.network:
        return own
    twin = _dense_twin_among(runs, run.twin_key())
    return None if twin is None else twin.figure("accuracy")


def _dense_twin_among(runs: Sequence[Run], key: str) -> Run | None:
    """The first finished dense run of that network on that data."""
    for run in runs:
        is_dense = run.is_finished and not run.is_compressed
        if is_dense and run.twin_key() == key:
            return run
    return None


def epoch_figures(runs: Sequence[Run]) -> list[Figure]:
    """Accuracy, then what the methods told of themselves (Δ), then the rest, each where
    a run has it.
    """
    found = _columns(runs)
    told = [key for key in found if key not in _OVER_EPOCHS]
    # Figures of the methods follow accuracy: they explain it. A dict keeps the first
    # place of a key that is named twice.
    order = dict.fromkeys(["accuracy", *told, *_OVER_EPOCHS])
    return [_over_epochs(runs, key) for key in order if key in found]


def _columns(runs: Sequence[Run]) -> list[str]:
    """The figures that some run has over its epochs, in the order of their first row."""
    found: dict[str, None] = {}
    for run in runs:
        for row in run.history:
            found |= dict.fromkeys(row)
    return [key for key in found if key not in _UNDRAWN]


def _over_epochs(runs: Sequence[Run], key: str) -> Figure:
    title, unit = _OVER_EPOCHS.get(key, (f"{key} of the method", ""))
    series = [
        Line(name=run.name, run=index, xs=xs, ys=ys)
        for index, run in enumerate(runs)
        for xs, ys in [run.column(key)]
        if xs
    ]
    note, level = "", None
    if key == "accuracy":
        known = {
            twin for run in runs if (twin := dense_accuracy(run, runs)) is not None
        }
        # One line only where all runs have the same twin.
        level = ("dense twin", known.pop()) if len(known) == 1 else None
        if len(series) == 1:
            run = next(run for run in runs if run.column("accuracy")[0])
            xs, ys = run.column("train_accuracy")
            if xs:
                series.append(
                    Line(
                        name="training batches",
                        run=series[0].run,
                        xs=xs,
                        ys=ys,
                        faint=True,
                    )
                )
                note = "The thin line is the accuracy on the training batches."
    # A method may call its figures anything, and a key becomes a file's name.
    name = (
        key
        if key in _OVER_EPOCHS
        else "delta"
        if key == "Δ"
        else f"method-{sorted(_names_of_method_figures(runs)).index(key)}"
    )
    return Figure(
        key=f"epochs-{name}",
        title=title,
        note=note,
        drawing=lines(
            f"epochs-{name}",
            series,
            unit=unit,
            level=level,
            skip_start=key in ("accuracy", "loss"),
        ),
    )


def _names_of_method_figures(runs: Sequence[Run]) -> set[str]:
    """The names of the methods' own figures."""
    return set(_columns(runs)) - _OVER_EPOCHS.keys()


def plane_figures(runs: Sequence[Run]) -> list[Figure]:
    """Accuracy against sparsity and against entropy; published points where a run used
    their data.
    """
    if not any(run.is_compressed for run in runs):
        return []
    tables = [
        table
        for table in published_tables()
        if any(run.data == table.data for run in runs)
    ]
    sources = "; ".join(table.source for table in tables)
    planes = {
        "sparsity": ("zeros, %", 0.0),
        "entropy_bits": ("entropy, bits per weight", None),
    }
    figures = []
    for key, (x_label, dense) in planes.items():
        points = _measured(runs, key, dense) + [
            p for table in tables for p in _published(table, key)
        ]
        if points:
            title = f"Accuracy against {'sparsity' if key == 'sparsity' else 'entropy'}"
            # The first steps are wild: beside other points they would cover them, alone
            # they only stretch the plot.
            part, fraction = (
                ("training after its first tenth", 0.1)
                if len(points) == 1
                else ("second half of training", 0.5)
            )
            note = f"The thin line is the way through the {part}." + (
                f" Hollow: published, {sources}." if sources else ""
            )
            drawing = scatter(
                f"plane-{key}",
                points,
                _trails(runs, key, skip=fraction),
                x_label=x_label,
            )
            figures.append(
                Figure(key=f"plane-{key}", title=title, note=note, drawing=drawing)
            )
    return figures


def _trails(runs: Sequence[Run], key: str, *, skip: float) -> list[Line]:
    """The way of each run, without the first `skip` of its epochs."""
    trails = []
    for index, run in enumerate(runs):
        rows = [row for row in run.history if key in row and "accuracy" in row]
        rows = rows[int(len(rows) * skip) :]
        if len(rows) < 2:
            continue
        xs = [row[key] for row in rows]
        ys = [row["accuracy"] for row in rows]
        trails.append(Line(name=run.name, run=index, xs=xs, ys=ys))
    return trails


def _measured(runs: Sequence[Run], key: str, dense: float | None) -> list[Point]:
    """One point a run; a dense network stands at `dense`, or nowhere."""
    points = []
    for index, run in enumerate(runs):
        x, y = run.figure(key) if run.is_compressed else dense, run.figure("accuracy")
        if x is not None and y is not None:
            points.append(
                Point(name=run.name, x=x, y=y, run=index, tip=_tip(run.name, y, key, x))
            )
    return points


def _published(table: PublishedTable, key: str) -> list[Point]:
    points = []
    for row in table.points:
        x = row.sparsity if key == "sparsity" else row.entropy_bits
        if isinstance(x, tuple):
            tip = f"{row.name}, published\n{percent(row.accuracy)} at {x[0]:g}–{x[1]:g} % zeros"
            points.append(
                Point(
                    name=row.name,
                    x=sum(x) / 2,
                    y=row.accuracy,
                    low=x[0],
                    high=x[1],
                    tip=tip,
                )
            )
        elif x is not None:
            points.append(
                Point(
                    name=row.name,
                    x=x,
                    y=row.accuracy,
                    tip=_tip(f"{row.name}, published", row.accuracy, key, x),
                )
            )
    return points


def _tip(name: str, accuracy: float, key: str, x: float) -> str:
    where = f"{percent(x)} zeros" if key == "sparsity" else f"{bits(x)} bit per weight"
    return f"{name}\n{percent(accuracy)} at {where}"
