"""The kinds of figure: lines over epochs, points in a plane, bars, steps and one
divided bar.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tersify.report.svg import (
    HALO,
    WIDTH,
    Drawing,
    Plot,
    color,
    label,
    shorten,
    tag,
)

PERCENT = " %"
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True, kw_only=True)
class Line:
    """One series; `run` lets the page's legend hide it."""

    name: str
    run: int
    xs: Sequence[float]
    ys: Sequence[float]
    faint: bool = False


def lines(
    key: str,
    series: Sequence[Line],
    *,
    unit: str = "",
    level: tuple[str, float] | None = None,
    skip_start: bool = False,
) -> Drawing:
    """Curves over epochs. `level` is a dashed line; `skip_start` lets the first tenth
    leave the plot below.
    """
    ys = [
        y
        for line in series
        for y in (line.ys[len(line.ys) // 10 :] if skip_start else line.ys)
    ]
    if level:
        ys.append(level[1])
    xs = [x for line in series for x in line.xs]
    plot = Plot(
        # One epoch alone still needs an axis of some length.
        (min(xs), max(max(xs), min(xs) + 1)),
        _padded(min(ys), max(ys), ceiling=100 if unit == PERCENT else math.inf),
    )
    marks, named = [plot.axes(x_label="epoch")], ""
    if level:
        y = plot.y(level[1])
        marks.append(
            tag(
                "line",
                x1=plot.left,
                x2=plot.right,
                y1=y,
                y2=y,
                stroke="var(--muted)",
                stroke_dasharray="4 4",
            )
        )
        # Below the line where there is no room above it.
        above = y - 5 if y - plot.top > 16 else y + 13
        named = label(plot.right, above, level[0], text_anchor="end", **HALO)
    curves = ""
    for line in sorted(series, key=lambda line: not line.faint):
        curve = tag(
            "path",
            d=plot.path(line.xs, line.ys),
            fill="none",
            stroke=color(line.run),
            stroke_linejoin="round",
            stroke_width=1.25 if line.faint else 2,
            stroke_opacity=0.45 if line.faint else None,
        )
        dot = (
            ""
            if len(line.xs) > 1
            else tag(
                "circle",
                cx=plot.x(line.xs[0]),
                cy=plot.y(line.ys[0]),
                r=3.5,
                fill=color(line.run),
            )
        )
        curves += tag("g", curve + dot, data_run=line.run)
    marks += [plot.clip(f"clip-{key}", curves), named]
    hover = {
        "box": [plot.left, plot.top, plot.right, plot.bottom],
        "x": plot.x_range,
        "y": plot.y_range,
        "unit": unit,
        "series": [
            {
                "name": s.name,
                "run": s.run,
                "xs": list(s.xs),
                "ys": [float(f"{y:.6g}") for y in s.ys],
            }
            for s in series
        ],
    }
    return Drawing("".join(marks), hover=hover)


@dataclass(frozen=True, kw_only=True)
class Point:
    """`run` is None for a published one, which is drawn hollow; `low` and `high` where
    x is known as a range.
    """

    name: str
    x: float
    y: float
    run: int | None = None
    low: float | None = None
    high: float | None = None
    tip: str = ""


def scatter(
    key: str, points: Sequence[Point], trails: Sequence[Line], *, x_label: str
) -> Drawing:
    """Named points, and behind them the way each run took; the plot is cut to the
    points, unless there is only one.
    """
    xs = [v for p in points for v in (p.x, p.low, p.high) if v is not None]
    ys = [p.y for p in points]
    if len(points) == 1:
        xs, ys = (
            xs + [x for t in trails for x in t.xs],
            ys + [y for t in trails for y in t.ys],
        )
    plot = Plot(
        _padded(min(xs), max(xs), fraction=0.08),
        _padded(min(ys), max(ys), fraction=0.12, ceiling=100),
    )
    ways = "".join(
        tag(
            "path",
            d=plot.path(t.xs, t.ys),
            fill="none",
            stroke=color(t.run),
            stroke_opacity=0.35,
            data_run=t.run,
        )
        for t in trails
    )
    marks = [plot.axes(x_label=x_label), plot.clip(f"clip-{key}", ways)]
    # Boxes that no name may cover: the points, then error bars, then names as they are
    # placed.
    taken: list[Box] = [
        (plot.x(p.x) - 5, plot.y(p.y) - 5, plot.x(p.x) + 5, plot.y(p.y) + 5)
        for p in points
    ]
    for point in points:
        if point.low is not None and point.high is not None:
            taken.append(
                (
                    plot.x(point.low),
                    plot.y(point.y) - 2,
                    plot.x(point.high),
                    plot.y(point.y) + 2,
                )
            )
    # Our own points first, so that their names get the better places.
    for point in sorted(points, key=lambda p: p.run is None):
        marks.append(_point(plot, point, taken))
    return Drawing("".join(marks))


def _point(plot: Plot, point: Point, taken: list[Box]) -> str:
    x, y = plot.x(point.x), plot.y(point.y)
    # Published points are grey and hollow, ours coloured and full.
    hue = "var(--muted)" if point.run is None else color(point.run)
    shape = ""
    if point.low is not None and point.high is not None:
        shape += tag(
            "line", x1=plot.x(point.low), x2=plot.x(point.high), y1=y, y2=y, stroke=hue
        )
    if point.run is None:
        shape += tag(
            "path",
            d=f"M{x:.1f} {y - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z",
            fill="var(--surface)",
            stroke=hue,
            stroke_width=1.5,
        )
    else:
        shape += tag(
            "circle",
            cx=x,
            cy=y,
            r=5,
            fill=hue,
            stroke="var(--surface)",
            stroke_width=1.5,
        )
    shape += _name(plot, point, x, y, taken)
    return tag("g", shape, data_tip=point.tip or point.name, data_run=point.run)


def _name(plot: Plot, point: Point, x: float, y: float, taken: list[Box]) -> str:
    """The point's name where it hides nothing; left to the hover where there is no such
    place.
    """
    if not point.name:
        return ""
    text = shorten(point.name, 24)
    # The mean width of a letter at this size; a browser alone would know the true one.
    width = 5.6 * len(text)
    tries = (
        (x + 9, y + 4, "start"),
        (x - 9, y + 4, "end"),
        (x, y - 10, "middle"),
        (x, y + 18, "middle"),
    )
    for at, base, anchor in tries:
        left = at - {"start": 0, "end": 1, "middle": 0.5}[anchor] * width
        box = (left, base - 9, left + width, base + 2)
        inside = (
            box[0] >= plot.left
            and box[2] <= WIDTH
            and box[1] >= 0
            and box[3] <= plot.bottom
        )
        if inside and not any(_overlap(box, other) for other in taken):
            taken.append(box)
            ink = "var(--muted)" if point.run is None else "var(--ink)"
            return label(
                at, base, text, text_anchor=anchor, font_size=10.5, fill=ink, **HALO
            )
    return ""


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def with_legend(drawing: Drawing, names: Sequence[tuple[str, int]]) -> Drawing:
    """The drawing with the colour of each series below it, in two columns: a file has
    no page around it to say.
    """
    marks = []
    for place, (name, index) in enumerate(names):
        x, y = (
            46 + (place % 2) * (WIDTH - 58) / 2,
            drawing.height + 12 + place // 2 * 16,
        )
        marks.append(
            tag("rect", x=x, y=y - 8, width=9, height=9, rx=2, fill=color(index))
        )
        marks.append(
            label(x + 14, y, shorten(name, 28), text_anchor="start", fill="var(--ink)")
        )
    height = drawing.height + 10 + 16 * -(-len(names) // 2)
    return replace(drawing, marks=drawing.marks + "".join(marks), height=height)


def _padded(
    low: float, high: float, *, fraction: float = 0.05, ceiling: float = math.inf
) -> tuple[float, float]:
    """Room around the values; an axis of percents goes no further than its `ceiling`,
    or just above a value there.
    """
    # Equal values have no span, and equal zeros not even a size.
    room = (high - low) * fraction or abs(high) * 0.1 or 0.05
    return low - room, min(high + room, max(ceiling, high) + 0.3 * room)
