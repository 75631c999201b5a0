"""Whole steps, coded by their entropy: the step of a weight is that of its row times
that of its column.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tersify.tensor import CompressedTensor

MOST_STEPS = 127  # either way from zero, so that there are at most 255 levels
# a step is stored as a power of 2^(1/4): three bits instead of thirty-two
STEPS_AN_OCTAVE = 4


def coarse(steps: Tensor) -> Tensor:
    """The nearest powers of 2^(1/4), in numbers of eight significant bits."""
    power = (
        steps.double().clamp(min=1e-30).log2() * STEPS_AN_OCTAVE
    ).round() / STEPS_AN_OCTAVE
    return power.exp2().to(torch.bfloat16).float()


class Steps:
    """Uniform steps with a dead zone around zero.

    Args:
        rows: a step for each row, before that of the columns.
        dead_zone: how much more than half a step a weight must have to be no zero.
    """

    def __init__(self, rows: Tensor, *, dead_zone: float) -> None:
        self.rows = coarse(rows)
        self.columns = torch.ones(0)
        self.dead_zone = dead_zone
        self._wholes = torch.empty(0, dtype=torch.int8)

    def begin(self, weight: Tensor, spread: Tensor) -> None:
        self.columns = coarse(spread)
        # No weight is cut off: a row with one that is far out gets a wider step.
        least = (
            (weight.abs() / self.columns).amax(1)
            / MOST_STEPS
            * 2 ** (0.6 / STEPS_AN_OCTAVE)
        )
        self.rows = coarse(torch.maximum(self.rows, least))
        self._wholes = torch.empty(
            weight.shape[1], weight.shape[0], dtype=torch.int8, device=weight.device
        )

    def block(self, weight: Tensor, spread: Tensor, columns: slice) -> None:
        pass

    def column(self, values: Tensor, index: int) -> Tensor:
        steps = self.rows * self.columns[index]
        whole = rounded(values / steps, self.dead_zone)
        self._wholes[index] = whole.to(torch.int8)
        return whole * self.rows * self.columns[index]

    def packed(self) -> CompressedTensor:
        return packed_steps(self._wholes.T.contiguous(), self.rows, self.columns)


def rounded(values: Tensor, dead_zone: float) -> Tensor:
    """The nearest whole numbers, and zero for those that are less than half a step and
    `dead_zone` away from it.
    """
    whole = values.round().clamp(-MOST_STEPS, MOST_STEPS)
    return torch.where(values.abs() < 0.5 + dead_zone, torch.zeros_like(whole), whole)


def packed_steps(wholes: Tensor, rows: Tensor, columns: Tensor) -> CompressedTensor:
    """Codes 0, 1, 2, … for whole numbers from zero up, and those behind them for the
    negative ones.
    """
    most = int(wholes.abs().max()) if wholes.numel() else 0
    codes = torch.where(wholes < 0, wholes.short() + 2 * most + 1, wholes.short()).to(
        torch.uint8
    )
    codebook = (
        torch.cat([torch.arange(most + 1), torch.arange(-most, 0)])
        .float()
        .to(wholes.device)
    )
    return CompressedTensor(
        shape=tuple(wholes.shape),
        codes=codes,
        codebook=codebook,
        scale=rows[:, None],
        column_scale=columns[None],
    )
