"""The bits that codes will take, from the statistics of rows and columns, before
anything is coded.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SAMPLE_ROWS = 48
CLASSES_AN_OCTAVE = 2  # as fine as the coder's own classes of rows and columns
MOST_CLASSES = 16
HALVINGS = 24
OCTAVES = 60  # that are gone through at most


def entropy_bits_by_scale(wholes: Tensor) -> float:
    """The entropy of the codes of a matrix, each in the context of its row's and
    column's size; a mean over weights.
    """
    sizes = wholes.abs().float()
    rows, columns = (
        sizes.mean(1, keepdim=True) + 1e-3,
        sizes.mean(0, keepdim=True) + 1e-3,
    )
    size = (rows * columns / (sizes.mean() + 1e-3)).log2()
    classes = (
        (CLASSES_AN_OCTAVE * (size - size.mean()))
        .round()
        .clamp(-MOST_CLASSES // 2, MOST_CLASSES // 2 - 1)
    )
    low = int(wholes.min())
    levels = int(wholes.max()) - low + 1
    joint = (classes.long() + MOST_CLASSES // 2) * levels + (wholes.long() - low)
    counts = (
        torch.bincount(joint.flatten(), minlength=MOST_CLASSES * levels)
        .view(MOST_CLASSES, levels)
        .double()
    )
    return float(
        (_n_log_n(counts.sum(1)).sum() - _n_log_n(counts).sum()) / wholes.numel()
    )


def _n_log_n(counts: Tensor) -> Tensor:
    return counts * counts.clamp(min=1).log2()


def sample_of(weight: Tensor) -> Tensor:
    """Which rows stand for all of them."""
    return (
        torch.linspace(0, len(weight) - 1, min(SAMPLE_ROWS, len(weight))).round().long()
    )


def _in_octaves(at: float, factor: float, is_enough: Callable[[float], bool]) -> float:
    """The first number on the way that is enough, or the last one tried."""
    for _ in range(OCTAVES):
        if is_enough(at):
            break
        at *= factor
    return at


def constant_for(bits: float, bits_at: Callable[[float], float], start: float) -> float:
    """The constant at which `bits_at`, which falls with it, gives as many bits; found
    by halving in octaves.
    """
    low = _in_octaves(start, 0.5, lambda constant: bits_at(constant) >= bits)
    high = _in_octaves(start, 2.0, lambda constant: bits_at(constant) <= bits)
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if bits_at(middle) > bits else (low, middle)
        if high / low < 1.002:
            break
    return high
