"""Numbers as people read them, and the round values an axis is marked with."""

from __future__ import annotations

import math

NONE = "–"


def percent(value: float | None, digits: int = 2) -> str:
    return NONE if value is None else f"{value:.{digits}f} %"


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Bytes in the unit in which they have at most three digits before the point."""
    if value is None:
        return NONE
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000 or unit == "GB":
            break
        value /= 1000
    return (
        f"{value:,.0f} B"
        if unit == "B"
        else f"{value:,.{1 if value >= 100 else 2}f} {unit}"
    )


def bits(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def times(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}×"


def points(value: float | None) -> str:
    """A difference of accuracies, always with its sign."""
    return NONE if value is None else f"{value:+.2f}".replace("-", "−")


def duration(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def short(value: float) -> str:
    """A value on an axis or in a hover: four significant digits, thousands as k, M, G."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= factor:
            return f"{value / (1e3 if unit == 'k' else factor):.4g} {unit}".replace(
                "-", "−"
            )
    return f"{value:.4g}".replace("-", "−")


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """About `wanted` round values (1, 2, 2.5 or 5 times a power of ten) inside [low,
    high].
    """
    span = high - low
    if not span > 0:
        return [low]
    rough = span / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    # 0.999 forgives the rounding of a rough step that is itself round.
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    # Twelve digits, so that 3 · 0.1 is 0.3.
    return [
        float(f"{i * step:.12g}")
        for i in range(first, math.floor(high / step + 1e-9) + 1)
    ]
