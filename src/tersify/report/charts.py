"""The kinds of figure: lines over epochs, points in a plane, bars, steps and one
divided bar.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tersify.report.number_text import short
from tersify.report.svg import (
    HALO,
    HEIGHT,
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
        _padded(min(xs), max(xs), share=0.08),
        _padded(min(ys), max(ys), share=0.12, ceiling=100),
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
    for point in sorted(points, key=lambda p: p.run is None):
        marks.append(_point(plot, point, taken))
    return Drawing("".join(marks))


def _point(plot: Plot, point: Point, taken: list[Box]) -> str:
    x, y = plot.x(point.x), plot.y(point.y)
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


@dataclass(frozen=True, kw_only=True)
class Bar:
    name: str
    value: float
    tip: str


def columns(
    bars: Sequence[Bar],
    *,
    hue: str,
    top: float | None = None,
    x_label: str = "",
    named: bool = False,
) -> Drawing:
    """Upright bars in their given order; `named` writes each name below, which suits
    few of them.
    """
    highest = top if top is not None else max(bar.value for bar in bars)
    plot = Plot((0, len(bars)), (0, highest * (1 if top else 1.06) or 1))
    marks = [plot.axes(x_label=x_label, x_ticks=())]
    step = (plot.right - plot.left) / len(bars)
    for index, bar in enumerate(bars):
        y, x = plot.y(bar.value), plot.left + index * step
        shape = tag(
            "rect",
            x=x,
            y=plot.top,
            width=step,
            height=plot.bottom - plot.top,
            fill="transparent",
        )
        shape += tag(
            "rect",
            x=x + step * 0.12,
            y=y,
            width=step * 0.76,
            height=max(plot.bottom - y, 0.75),
            fill=hue,
            rx=min(2.0, step / 6),
        )
        if named:
            shape += label(
                x + step / 2, plot.bottom + 15, shorten(bar.name, max(3, int(step / 6)))
            )
        marks.append(tag("g", shape, data_tip=bar.tip))
    return Drawing("".join(marks))


def rows(bars: Sequence[Bar], *, hues: Sequence[str]) -> Drawing:
    """Bars lying down, their names above them and their values behind them."""
    highest = max(bar.value for bar in bars) or 1
    marks = []
    for index, (bar, hue) in enumerate(zip(bars, hues, strict=True)):
        top = 10 + index * 36
        width = max((WIDTH - 90) * bar.value / highest, 1.0)
        shape = label(12, top + 9, shorten(bar.name, 60), text_anchor="start")
        shape += tag("rect", x=12, y=top + 14, width=width, height=13, rx=2, fill=hue)
        shape += label(
            18 + width,
            top + 25,
            short(bar.value),
            text_anchor="start",
            fill="var(--ink)",
            font_size=12,
        )
        marks.append(tag("g", shape, data_tip=bar.tip))
    return Drawing("".join(marks), height=16 + 36 * len(bars))


def steps(
    edges: Sequence[float],
    counts: Sequence[float],
    *,
    hue: str,
    x_label: str = "",
    threshold: float | None = None,
    tips: bool = True,
) -> Drawing:
    """A histogram; the bins inside ±`threshold` are pale, because those weights become
    zero.

    Without `tips` it is light enough to be drawn for every layer.
    """
    plot = Plot((edges[0], edges[-1]), (0, max(counts) * 1.06 or 1))
    total = sum(counts) or 1
    marks = [plot.axes(x_label=x_label)]
    outlines: dict[bool, str] = {}
    hits = []
    for low, high, number in zip(edges, edges[1:], counts, strict=False):
        x, width = plot.x(low), plot.x(high) - plot.x(low)
        pale = threshold is not None and abs(low + high) / 2 <= threshold
        bar = f"M{x:.1f} {plot.bottom:.1f}V{plot.y(number):.1f}h{max(width - 0.4, 0.4):.1f}V{plot.bottom:.1f}z"
        outlines[pale] = outlines.get(pale, "") + bar
        tip = f"{short(low)} … {short(high)}\n{number:,.0f} weights · {100 * number / total:.2f} %"
        hits.append(
            tag(
                "rect",
                x=x,
                y=plot.top,
                width=width,
                height=plot.bottom - plot.top,
                fill="transparent",
                data_tip=tip,
            )
        )
    marks += [
        tag("path", d=d, fill=hue, fill_opacity=0.4 if pale else None)
        for pale, d in outlines.items()
    ]
    marks += hits if tips else []
    for at in (
        (-threshold, threshold)
        if threshold is not None and threshold < edges[-1]
        else ()
    ):
        x = plot.x(at)
        marks.append(
            tag(
                "line",
                x1=x,
                x2=x,
                y1=plot.top,
                y2=plot.bottom,
                stroke="var(--ink)",
                stroke_dasharray="3 3",
            )
        )
        marks.append(
            label(
                x + (4 if at > 0 else -4),
                plot.top + 8,
                f"{'−' if at < 0 else ''}Δ",
                text_anchor="start" if at > 0 else "end",
                fill="var(--ink)",
            )
        )
    return Drawing("".join(marks))


def divided(parts: Sequence[Bar], *, total: float) -> Drawing:
    """One bar cut into its parts, each named below with its share."""
    marks, x = [], 12.0
    whole = WIDTH - 24
    for index, part in enumerate(parts):
        width = whole * part.value / (total or 1)
        top = 66 + 24 * index
        shape = tag(
            "rect",
            x=x,
            y=12,
            width=max(width - 1, 0.5),
            height=36,
            fill=color(index),
            rx=2,
        )
        shape += tag(
            "rect", x=12, y=top - 10, width=11, height=11, fill=color(index), rx=2
        )
        shape += label(
            30,
            top,
            shorten(part.name, 40),
            text_anchor="start",
            fill="var(--ink)",
            font_size=12,
        )
        amount = f"{part.value:,.0f} B · {100 * part.value / (total or 1):.1f} %"
        shape += label(WIDTH - 12, top, amount, text_anchor="end", font_size=12)
        marks.append(tag("g", shape, data_tip=part.tip))
        x += width
    return Drawing("".join(marks), height=min(66 + 24 * len(parts), HEIGHT * 4))


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
    low: float, high: float, *, share: float = 0.05, ceiling: float = math.inf
) -> tuple[float, float]:
    """Room around the values; an axis of percents goes no further than its `ceiling`,
    or just above a value there.
    """
    room = (high - low) * share or abs(high) * 0.1 or 0.05
    return low - room, min(high + room, max(ceiling, high) + 0.3 * room)
