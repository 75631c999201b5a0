"""Width and depth multipliers: the two knobs of compound scaling (EC2T, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence

from tersify.checks import check_range


def scaled_channels(channels: Sequence[int], width: float) -> list[int]:
    """Every channel count times `width`, rounded, at least 1."""
    _check_factor("width", width)
    return [max(1, round(count * width)) for count in channels]


def scaled_blocks(blocks: int, depth: float) -> int:
    """The number of blocks a stage gets, at least 1."""
    _check_factor("depth", depth)
    return max(1, round(blocks * depth))


def compound(coefficient: float) -> dict[str, float]:
    """Width and depth for one coefficient φ: 1.1^φ and 1.2^φ, so about 1.45^φ times the
    operations.

    The bases are those of EfficientNet (Tan and Le 2019), which EC2T takes over; the
    images stay as large as they are.
    """
    check_range("compound", coefficient, low=-8, high=8)
    return {"width": 1.1**coefficient, "depth": 1.2**coefficient}


def _check_factor(name: str, value: object) -> None:
    check_range(name, value, low=0, high=64, low_open=True)
