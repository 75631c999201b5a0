"""SVG by hand: escaped elements, and a plot area with its axes.

Colours are written as `var(--name)`, so that a figure follows the page's light or dark
theme; `standalone` puts the light values in their place, because programs that print
figures know no variables.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from tersify.report.number_text import short, ticks

WIDTH, HEIGHT = 400, 250
LIGHT = {
    "ink": "#1b1f24",
    "muted": "#66707c",
    "grid": "#e4e7eb",
    "surface": "#ffffff",
    "s0": "#2563c9",
    "s1": "#d1602b",
    "s2": "#1f8a5f",
    "s3": "#8a4fc4",
    "s4": "#b8890b",
    "s5": "#c23a6b",
    "s6": "#12859c",
    "s7": "#6d7680",
}
DARK = {
    "ink": "#e8eaed",
    "muted": "#9aa4b0",
    "grid": "#2e353e",
    "surface": "#1a1f26",
    "s0": "#6ea3f5",
    "s1": "#f0905c",
    "s2": "#55c596",
    "s3": "#bd91ee",
    "s4": "#e0b548",
    "s5": "#ee7ba3",
    "s6": "#55bfd4",
    "s7": "#a7b0ba",
}
SERIES = 8
# Keeps a text readable that stands on a line.
HALO = {
    "stroke": "var(--surface)",
    "stroke_width": 3,
    "paint_order": "stroke",
    "stroke_linejoin": "round",
}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"
# Control characters are not allowed in XML, not even escaped.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def clean(value: object) -> str:
    """Text from anywhere, safe inside an element and inside a quoted attribute."""
    return escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(value)), quote=True)


def color(index: int) -> str:
    return f"var(--s{index % SERIES})"


def tag(name: str, content: str = "", **attributes: Any) -> str:
    """An element around finished markup; attributes are escaped, `_` in their names
    becomes `-`.
    """
    pairs = "".join(
        f' {key.strip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{pairs}>{content}</{name}>" if content else f"<{name}{pairs}/>"


def label(x: float, y: float, text: object, **attributes: Any) -> str:
    given = {
        "fill": "var(--muted)",
        "font_size": 11,
        "text_anchor": "middle",
    } | attributes
    return tag("text", clean(text), x=x, y=y, **given)


def _value(value: Any) -> str:
    return (
        f"{value:.2f}".rstrip("0").rstrip(".")
        if isinstance(value, float)
        else clean(value)
    )


def shorten(text: str, letters: int) -> str:
    """The end of a long name tells more than its start."""
    return text if len(text) <= letters else "…" + text[-(letters - 1) :]


@dataclass(frozen=True)
class Plot:
    """A rectangle in which data coordinates become places."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    left: float = 46
    top: float = 12
    right: float = WIDTH - 12
    bottom: float = HEIGHT - 36

    def x(self, value: float) -> float:
        low, high = self.x_range
        # `or 1`: a range of one value puts everything at the left edge.
        return self.left + (self.right - self.left) * (value - low) / (
            (high - low) or 1
        )

    def y(self, value: float) -> float:
        low, high = self.y_range
        # SVG counts downwards, so larger values have smaller y.
        return self.bottom - (self.bottom - self.top) * (value - low) / (
            (high - low) or 1
        )

    def axes(self, *, x_label: str = "", x_ticks: Sequence[float] | None = None) -> str:
        marks = []
        for value in ticks(*self.y_range):
            y = self.y(value)
            marks.append(
                tag(
                    "line",
                    x1=self.left,
                    x2=self.right,
                    y1=y,
                    y2=y,
                    stroke="var(--grid)",
                )
            )
            marks.append(label(self.left - 6, y + 4, short(value), text_anchor="end"))
        for value in ticks(*self.x_range) if x_ticks is None else x_ticks:
            marks.append(label(self.x(value), self.bottom + 15, short(value)))
        marks.append(
            tag(
                "line",
                x1=self.left,
                x2=self.right,
                y1=self.bottom,
                y2=self.bottom,
                stroke="var(--muted)",
            )
        )
        if x_label:
            marks.append(label((self.left + self.right) / 2, self.bottom + 31, x_label))
        return "".join(marks)

    def path(self, xs: Sequence[float], ys: Sequence[float]) -> str:
        return "M" + "L".join(
            f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in zip(xs, ys, strict=True)
        )

    def clip(self, key: str, content: str) -> str:
        """`content` cut at the plot's edges; `key` names the clip and is unique in the
        page.
        """
        area = tag(
            "rect",
            x=self.left,
            y=self.top - 4,
            width=self.right - self.left + 4,
            height=self.bottom - self.top + 4,
        )
        return tag("clipPath", area, id=key) + tag(
            "g", content, clip_path=f"url(#{key})"
        )


@dataclass(frozen=True)
class Drawing:
    """Finished marks, and what the page's script needs to answer a pointer."""

    marks: str
    height: int = HEIGHT
    hover: dict[str, Any] | None = None

    def inline(self, title: str) -> str:
        return _svg(self.marks, f"0 0 {WIDTH} {self.height}", title)

    def standalone(self, title: str) -> str:
        """A file of its own: light colours as literals, a white ground, the title
        above.
        """
        ground = tag(
            "rect",
            x=0,
            y=-28,
            width=WIDTH,
            height=self.height + 28,
            fill="var(--surface)",
        )
        heading = label(
            12,
            -9,
            title,
            fill="var(--ink)",
            font_size=13,
            font_weight=600,
            text_anchor="start",
        )
        text = _svg(
            ground + heading + self.marks,
            f"0 -28 {WIDTH} {self.height + 28}",
            title,
            xmlns="http://www.w3.org/2000/svg",
            width=WIDTH,
            height=self.height + 28,
        )
        return re.sub(r"var\(--(\w+)\)", lambda found: LIGHT[found[1]], text) + "\n"


def _svg(marks: str, box: str, title: str, **attributes: Any) -> str:
    return tag(
        "svg",
        marks,
        viewBox=box,
        role="img",
        aria_label=title,
        font_family=FONT,
        **attributes,
    )
