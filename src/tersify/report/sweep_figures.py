"""A sweep's figures from its sweep.json: the front, parallel coordinates, importance,
and the front as a table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tersify.regular import read_regular
from tersify.report.bar_charts import Bar, rows
from tersify.report.figures import Figure
from tersify.report.html_tables import Cell, table
from tersify.report.number_text import short
from tersify.report.run_files import is_number
from tersify.report.svg import HEIGHT, WIDTH, Drawing, Plot, color, label, shorten, tag

RESULTS = "sweep.json"
MOST_RUNS = 6  # of the front whose own sections the page shows
_NAMES = {
    "accuracy": "accuracy, %",
    "sparsity": "zeros, %",
    "entropy_bits": "entropy, bits per weight",
    "file_bytes": "bytes on disk",
    "latency_ms": "latency, ms",
}


@dataclass(frozen=True)
class SweepResults:
    """What was tried; complete trials only, each with its figures in `values`."""

    path: Path
    name: str
    objectives: list[dict[str, str]]
    space: dict[str, dict[str, Any]]
    trials: list[dict[str, Any]]
    front: list[int]
    importance: dict[str, dict[str, float]]
    told: str

    def runs(self) -> list[Path]:
        """The run directories of the front, best first."""
        sign = -1 if self.objectives[0]["direction"] == "maximize" else 1
        best = sorted(
            (t for t in self.trials if t["number"] in self.front),
            key=lambda t: sign * t["values"][0],
        )
        found = [self.path / "trials" / f"{t['number']:04d}" for t in best]
        return [path for path in found if path.is_dir()][:MOST_RUNS]


def read_sweep(directory: Path) -> SweepResults | None:
    """The sweep in this directory; None where there is none, or nothing that could be
    drawn.
    """
    try:
        # A sweep may be at work still, or somebody's file may be damaged: whatever
        # cannot be drawn is left out, and the page shows the rest.
        found = json.loads(read_regular(directory / RESULTS))
        count = len(found["objectives"])
        complete = [
            t
            for t in found["trials"]
            if t["state"] == "complete"
            and len(t["values"]) == count
            and all(map(is_number, t["values"]))
        ]
        states = [str(t["state"]) for t in found["trials"]]
        told = ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states))
        return (
            SweepResults(
                directory,
                str(found["name"]),
                found["objectives"],
                found["space"],
                complete,
                found["front"],
                found.get("importance", {}),
                told,
            )
            if complete
            else None
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def sweep_figures(sweep: SweepResults, prefix: str = "sweep") -> list[Figure]:
    figures = _fronts(sweep, prefix)
    note = "One line a trial; those of the front in colour. Each axis runs from its least value, below, to its largest."
    figures.append(
        Figure(
            key=f"{prefix}-parallel",
            title="Parallel coordinates",
            note=note,
            drawing=_parallel(sweep),
        )
    )
    for index, (name, fractions) in enumerate(sweep.importance.items()):
        bars = [
            Bar(name=field, value=100 * s, tip=f"{field}\n{100 * s:.1f} %")
            for field, s in fractions.items()
        ]
        if bars:
            drawing = rows(bars, hues=[color(index)] * len(bars))
            note = "How far each field tells the best quarter of the trials from all of them, in percent (PED-ANOVA)."
            figures.append(
                Figure(
                    key=f"{prefix}-importance-{index}",
                    title=f"Importance for {_word(name)}",
                    note=note,
                    drawing=drawing,
                )
            )
    return figures


def _word(objective: str) -> str:
    return "entropy" if objective == "entropy_bits" else objective.replace("_", " ")


def sweep_table(sweep: SweepResults) -> str:
    heads = ["trial", *(o["name"] for o in sweep.objectives), *sweep.space]
    on_front = [trial for trial in sweep.trials if trial["number"] in sweep.front]
    body = []
    for trial in on_front:
        number = Cell(str(trial["number"]), trial["number"])
        figures = [Cell(short(value), value) for value in trial["values"]]
        settings = [_cell(trial["params"].get(field, "")) for field in sweep.space]
        body.append([number, *figures, *settings])
    return table(f"The front ({sweep.told})", heads, body)


def _cell(setting: Any) -> Cell:
    """A setting as a table shows it; by its value it is sorted, if it is a number."""
    if is_number(setting):
        return Cell(short(setting), setting)
    return Cell(str(setting))


def _fronts(sweep: SweepResults, prefix: str) -> list[Figure]:
    """The first objective against each other one, or over the trials where it is alone."""
    first = sweep.objectives[0]["name"]
    others = [(o["name"], i) for i, o in enumerate(sweep.objectives) if i] or [
        ("trial", -1)
    ]
    figures = []
    for place, (name, index) in enumerate(others):
        points = [
            (t["number"] if index < 0 else t["values"][index], t["values"][0], t)
            for t in sweep.trials
        ]
        title = (
            f"The front: {_word(first)} against {_word(name)}"
            if index > 0
            else f"The front: {_word(first)} of each trial"
        )
        figures.append(
            Figure(
                key=f"{prefix}-front-{place}",
                title=title,
                drawing=_points(sweep, points, name),
            )
        )
    return figures


def _points(
    sweep: SweepResults,
    points: Sequence[tuple[float, float, dict[str, Any]]],
    x_name: str,
) -> Drawing:
    plot = Plot(
        _padded_range([x for x, _, _ in points]),
        _padded_range([y for _, y, _ in points]),
    )
    marks = [plot.axes(x_label=_NAMES.get(x_name, x_name))]
    # False sorts first: the front is drawn last, above the others.
    for x, y, trial in sorted(points, key=lambda p: p[2]["number"] in sweep.front):
        leads = trial["number"] in sweep.front
        hue, radius, opacity = (
            (color(0), 5.0, 1.0) if leads else ("var(--muted)", 3.5, 0.5)
        )
        dot = tag(
            "circle",
            cx=plot.x(x),
            cy=plot.y(y),
            r=radius,
            fill=hue,
            fill_opacity=opacity,
        )
        marks.append(tag("g", dot, data_tip=_tip(sweep, trial)))
    return Drawing("".join(marks))


def _parallel(sweep: SweepResults) -> Drawing:
    axes = [*sweep.space, *(o["name"] for o in sweep.objectives)]
    columns = [_column(sweep, name, index) for index, name in enumerate(axes)]
    left, right, top, bottom = 30.0, WIDTH - 30.0, 26.0, HEIGHT - 36.0
    # Axes at equal distances; one alone stands at the left.
    xs = [left + (right - left) * i / max(len(axes) - 1, 1) for i in range(len(axes))]
    marks = []
    for number, trial in sorted(
        enumerate(sweep.trials), key=lambda pair: pair[1]["number"] in sweep.front
    ):
        leads = trial["number"] in sweep.front
        path = "M" + "L".join(
            f"{x:.1f} {bottom - (bottom - top) * places[number]:.1f}"
            for x, (places, _, _) in zip(xs, columns, strict=True)
        )
        line = tag(
            "path",
            d=path,
            fill="none",
            stroke=color(0) if leads else "var(--muted)",
            stroke_width=2 if leads else 1,
            stroke_opacity=0.9 if leads else 0.3,
        )
        marks.append(tag("g", line, data_tip=_tip(sweep, trial)))
    for index, (x, name, (_, low, high)) in enumerate(
        zip(xs, axes, columns, strict=True)
    ):
        marks.append(
            tag(
                "line",
                x1=x,
                x2=x,
                y1=top,
                y2=bottom,
                stroke="var(--ink)",
                stroke_opacity=0.6,
            )
        )
        # Names at the two ends point inwards, so that the figure does not cut them.
        anchor = (
            "start" if index == 0 else "end" if index == len(axes) - 1 else "middle"
        )
        edge = {"start": x - 18, "end": x + 18}.get(anchor, x)
        marks.append(
            label(edge, top - 8, shorten(high, 12), text_anchor=anchor, font_size=9)
        )
        marks.append(
            label(edge, bottom + 12, shorten(low, 12), text_anchor=anchor, font_size=9)
        )
        name = shorten(name.rpartition(".")[2], 14)
        marks.append(
            label(
                edge,
                bottom + (25 if index % 2 else 33),
                name,
                text_anchor=anchor,
                fill="var(--ink)",
                font_size=10,
            )
        )
    return Drawing("".join(marks))


def _column(sweep: SweepResults, name: str, index: int) -> tuple[list[float], str, str]:
    """Each trial's place on an axis, 0 … 1, and what stands at its two ends."""
    if index >= len(sweep.space):
        # The axes of the objectives follow those of the space.
        values = [t["values"][index - len(sweep.space)] for t in sweep.trials]
        return _scaled(values, log=False)
    spec = sweep.space[name]
    raw = [t["params"].get(name) for t in sweep.trials]
    if spec.get("kind") == "categorical":
        choices = list(map(str, spec["choices"]))
        places = [
            choices.index(str(value)) / max(len(choices) - 1, 1)
            if str(value) in choices
            else 0.0
            for value in raw
        ]
        return places, choices[0], choices[-1]
    return _scaled(
        [float(value) if is_number(value) else 0.0 for value in raw],
        log=spec.get("kind") == "log",
    )


def _scaled(values: Sequence[float], *, log: bool) -> tuple[list[float], str, str]:
    low, high = min(values), max(values)
    # A damaged file may claim a logarithmic axis with values of zero.
    shown = list(map(math.log, values)) if log and low > 0 else list(values)
    least, span = min(shown), (max(shown) - min(shown)) or 1.0
    return [(v - least) / span for v in shown], short(low), short(high)


def _padded_range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    # Equal values have no span, and equal zeros not even a size.
    room = (high - low) * 0.06 or abs(high) * 0.1 or 0.05
    return low - room, high + room


def _tip(sweep: SweepResults, trial: dict[str, Any]) -> str:
    figures = [
        f"{o['name']} {short(v)}"
        for o, v in zip(sweep.objectives, trial["values"], strict=True)
    ]
    params = [
        f"{name} {short(v) if is_number(v) else v}"
        for name, v in trial["params"].items()
    ]
    return "\n".join([f"trial {trial['number']}", *figures, *params])
