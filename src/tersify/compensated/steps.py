"""Steps, coded by their entropy: the step of a weight is that of its row times that of
its column.
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


class Grid:
    """Codes of whole or other numbers of steps; the step of a weight is that of its row
    times that of its column.

    Args:
        rows: a step for each row, before that of the columns.
        keep_latents: whether `latents` holds what was rounded, in steps.
    """

    def __init__(self, rows: Tensor, *, keep_latents: bool = False) -> None:
        self.rows = coarse(rows)
        self.columns = torch.ones(0)
        self._ranks = torch.empty(0, dtype=torch.int8)
        self._latents = torch.empty(0, dtype=torch.float16) if keep_latents else None

    def begin(self, weight: Tensor, spread: Tensor) -> None:
        self.columns = coarse(spread)
        self._ranks = torch.empty(
            weight.shape[1], weight.shape[0], dtype=torch.int8, device=weight.device
        )
        if self._latents is not None:
            self._latents = torch.empty_like(self._ranks, dtype=torch.float16)

    def block(self, weight: Tensor, spread: Tensor, columns: slice) -> None:
        pass

    def column(self, values: Tensor, index: int) -> Tensor:
        steps = values / (self.rows * self.columns[index])
        ranks, made = self.rounded(steps)
        self._ranks[index] = ranks.to(torch.int8)
        if self._latents is not None:
            self._latents[index] = steps.to(torch.float16)
        return made * self.rows * self.columns[index]

    def rounded(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        """The number of each level, counted from zero up and down, and the level."""
        raise NotImplementedError

    @property
    def latents(self) -> Tensor | None:
        """What was rounded, rows × columns in steps, where it was to be kept."""
        return None if self._latents is None else self._latents.T.contiguous()


class Steps(Grid):
    """Uniform steps with a dead zone around zero.

    Args:
        rows: a step for each row, before that of the columns.
        dead_zone: how much more than half a step a weight must have to be no zero.
        most: steps of a weight, either way from zero.
        keep_latents: whether `latents` holds what was rounded, in steps.
    """

    def __init__(
        self,
        rows: Tensor,
        *,
        dead_zone: float,
        most: int = MOST_STEPS,
        keep_latents: bool = False,
    ) -> None:
        super().__init__(rows, keep_latents=keep_latents)
        self.dead_zone, self.most = dead_zone, most

    def begin(self, weight: Tensor, spread: Tensor) -> None:
        super().begin(weight, spread)
        # No weight is cut off: a row with one that is far out gets a wider step.
        least = (
            (weight.abs() / self.columns).amax(1)
            / self.most
            * 2 ** (0.6 / STEPS_AN_OCTAVE)
        )
        self.rows = coarse(torch.maximum(self.rows, least))

    def rounded(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        whole = rounded(steps, self.dead_zone, self.most)
        return whole, whole

    def packed(self) -> CompressedTensor:
        return packed_steps(self._ranks.T.contiguous(), self.rows, self.columns)


def rounded(values: Tensor, dead_zone: float, most: int = MOST_STEPS) -> Tensor:
    """The nearest whole numbers up to `most`, and zero for those that are less than
    half a step and `dead_zone` away from it.
    """
    whole = values.round().clamp(-most, most)
    return torch.where(values.abs() < 0.5 + dead_zone, torch.zeros_like(whole), whole)


def packed_steps(wholes: Tensor, rows: Tensor, columns: Tensor) -> CompressedTensor:
    """The codes of whole numbers, with a step for each row and each column."""
    return packed_grid(*coded_steps(wholes), rows, columns)


def packed_grid(
    codes: Tensor, codebook: Tensor, rows: Tensor, columns: Tensor
) -> CompressedTensor:
    """Codes with a step for each row and each column."""
    return CompressedTensor(
        shape=tuple(codes.shape),
        codes=codes,
        codebook=codebook,
        scale=rows[:, None],
        column_scale=columns[None],
    )


def coded_steps(wholes: Tensor) -> tuple[Tensor, Tensor]:
    """Codes 0, 1, 2, … for whole numbers from zero up, and those behind them for the
    negative ones; and what they stand for.
    """
    most = int(wholes.abs().max()) if wholes.numel() else 0
    codes = torch.where(wholes < 0, wholes.short() + 2 * most + 1, wholes.short()).to(
        torch.uint8
    )
    levels = torch.cat([torch.arange(most + 1), torch.arange(-most, 0)])
    return codes, levels.float().to(wholes.device)
