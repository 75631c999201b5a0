"""Bars: columns, rows, steps of a staircase, and one bar that is divided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tersify.report.number_text import short
from tersify.report.svg import (
    HEIGHT,
    WIDTH,
    Drawing,
    Plot,
    color,
    label,
    shorten,
    tag,
)


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
    # 6 % of room above the highest bar; `or 1`, since bars of zero have no range.
    plot = Plot((0, len(bars)), (0, highest * (1 if top else 1.06) or 1))
    marks = [plot.axes(x_label=x_label, x_ticks=())]
    step = (plot.right - plot.left) / len(bars)
    for index, bar in enumerate(bars):
        y, x = plot.y(bar.value), plot.left + index * step
        # A transparent column over the whole height, so that a pointer finds even a low
        # bar.
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
        # A bin counts as zeros if its middle does.
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
    """One bar cut into its parts, each named below with its fraction."""
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
