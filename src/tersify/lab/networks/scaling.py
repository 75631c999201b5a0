"""Width and depth multipliers: the two knobs of compound scaling (EC2T, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence


def scaled_channels(channels: Sequence[int], width: float) -> list[int]:
    """Every channel count times `width`, rounded, at least 1."""
    _check_factor("width", width)
    return [max(1, round(count * width)) for count in channels]


def scaled_blocks(blocks: int, depth: float) -> int:
    """The number of blocks a stage gets, at least 1."""
    _check_factor("depth", depth)
    return max(1, round(blocks * depth))


def check_count(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number from 1 on, got {value!r}")


def check_share(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError(f"{name} must be from 0 on and below 1, got {value!r}")


def _check_factor(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 64:
        raise ValueError(f"{name} must be above 0 and at most 64, got {value!r}")
