"""Integers with a format: what each wire of a fixed-point circuit carries, and what
happens where it is too narrow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Format:
    """`width` bits of which `fraction` lie behind the point; a value is integer ·
    2^−fraction.
    """

    width: int
    fraction: int
    signed: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.width <= 62:
            raise ValueError(f"a width must be 1..62 bits, got {self.width}")

    @property
    def lowest(self) -> int:
        return -(1 << (self.width - 1)) if self.signed else 0

    @property
    def highest(self) -> int:
        return (1 << (self.width - (1 if self.signed else 0))) - 1

    def real(self, integers: Ints) -> npt.NDArray[np.float64]:
        return integers.astype(np.float64) * 2.0**-self.fraction


def _floor(values: Ints, bits: int) -> Ints:
    return values >> bits


def _half_up(values: Ints, bits: int) -> Ints:
    return (values + (1 << (bits - 1))) >> bits


def _half_even(values: Ints, bits: int) -> Ints:
    # Shifts of negative integers round down, so `rest` is never negative.
    below = values >> bits
    rest = values - (below << bits)
    half = 1 << (bits - 1)
    return below + ((rest > half) | ((rest == half) & (below & 1 == 1)))


def _toward_zero(values: Ints, bits: int) -> Ints:
    return np.where(values < 0, -((-values) >> bits), values >> bits)


ROUNDINGS: dict[str, Callable[[Ints, int], Ints]] = {
    "floor": _floor,
    "half-up": _half_up,
    "half-even": _half_even,
    "toward-zero": _toward_zero,
}


def shift_right(values: Ints, bits: int, rounding: str = "half-up") -> Ints:
    """Divide by 2^bits and round; a negative `bits` multiplies, exactly."""
    if rounding not in ROUNDINGS:
        raise ValueError(
            f"rounding must be one of {', '.join(ROUNDINGS)}, got {rounding!r}"
        )
    if bits <= 0:
        return values << -bits
    return ROUNDINGS[rounding](values, bits)


@dataclass
class Node:
    """What was seen at one place of the circuit."""

    format: Format
    lowest: int
    highest: int
    overflows: int
    values: int
    dump: Ints | None = None


@dataclass
class Monitor:
    """Collects, by the name of the node, extremes and overflows; with `dump`, every
    integer that passed.
    """

    dump: bool = False
    nodes: dict[str, Node] = field(default_factory=dict)

    def see(self, name: str, values: Ints, form: Format) -> Ints:
        """Note the values as they arrive, then saturate them to the format."""
        # Extremes are those before saturation: they tell how many bits are missing.
        low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
        overflows = int(((values < form.lowest) | (values > form.highest)).sum())
        kept = np.clip(values, form.lowest, form.highest)
        node = self.nodes.get(name)
        if node is None:
            self.nodes[name] = Node(
                form,
                low,
                high,
                overflows,
                values.size,
                kept.copy() if self.dump else None,
            )
        else:
            node.lowest, node.highest = min(node.lowest, low), max(node.highest, high)
            node.overflows += overflows
            node.values += values.size
            if node.dump is not None:
                node.dump = np.concatenate([node.dump.reshape(-1), kept.reshape(-1)])
        return kept

    def overflows(self) -> dict[str, int]:
        """The nodes that had to saturate, and how often."""
        return {
            name: node.overflows for name, node in self.nodes.items() if node.overflows
        }


def quantize(
    values: npt.NDArray[np.floating],
    form: Format,
    monitor: Monitor | None = None,
    name: str = "",
) -> Ints:
    """Real values to the nearest integers of a format, saturated; NaN is refused."""
    if not np.isfinite(values).all():
        raise ValueError(
            f"{name or 'the input'} holds NaN or infinite values; fixed point has none"
        )
    # Half-up, as an adder and a shift do it. Clipping comes before the conversion: a
    # float beyond int64 converts to an arbitrary number.
    integers = np.floor(np.asarray(values, np.float64) * 2.0**form.fraction + 0.5)
    integers = np.clip(integers, -(2.0**62), 2.0**62).astype(np.int64)
    return (monitor or Monitor()).see(name, integers, form)
