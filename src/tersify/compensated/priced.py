"""Tables of few levels whose codes have a price: the levels that are best when the bits
of the codes count as well as the errors.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor

from tersify.compensated.steps import Grid, coarse, packed_grid
from tersify.tensor import CompressedTensor

# of a bit, in squared steps: at this price uniform steps of one are best where there
# are many of them
PRICE = math.log(4) / 12
BINS, LEAST_BIN = 384, 1 / 16
REACH = 0.3  # of the levels, at most, is the size of a row's weights
LEVEL_STEP = 1 / 8  # levels are multiples of it, which take few bytes


class Levels:
    """Levels in ascending order, zero among them, and the limits between neighbours.

    A limit lies nearer to the level that is rarer, for its code is longer.
    """

    def __init__(self, values: Tensor, counts: Tensor) -> None:
        self.values = values
        self.zero = int((values == 0).nonzero())
        bits = -((counts.double() + 0.5) / counts.sum()).log2().to(values.dtype)
        gaps = values.diff()
        limits = values[:-1] + gaps / 2 + PRICE * bits.diff() / (2 * gaps)
        self.limits = limits.cummax(0).values

    def ranks(self, values: Tensor) -> Tensor:
        """For each number that of its level, counted from zero up and down."""
        return torch.bucketize(values.contiguous(), self.limits) - self.zero

    def __call__(self, values: Tensor) -> Tensor:
        return self.values[self.ranks(values) + self.zero]

    def coded(self, ranks: Tensor) -> tuple[Tensor, Tensor]:
        """Codes, those of levels below zero behind the others, and what they stand for."""
        codes = torch.where(ranks < 0, ranks + len(self.values), ranks)
        return codes.to(torch.uint8), self.values.roll(-self.zero)

    @classmethod
    def of(cls, packed: CompressedTensor) -> Levels:
        """Those of a packed matrix."""
        assert packed.codebook is not None
        counts = torch.bincount(
            packed.codes.flatten().int(), minlength=len(packed.codebook)
        )
        order = packed.codebook.argsort()
        return cls(packed.codebook[order], counts[order])


def priced_levels(values: Tensor, most: int) -> Levels:
    """At most so many levels with the least Σ (value − level)² + PRICE · bits: exact,
    for limits between bins.
    """
    flat = values.detach().flatten().double().cpu().numpy()
    reach = float(np.abs(flat).max(initial=LEAST_BIN))
    width = max(LEAST_BIN, 2 * reach / BINS)
    half = int(np.ceil(reach / width))
    # Zero lies in the middle of a bin.
    bins = np.rint(flat / width).astype(np.int64) + half
    below = np.stack([_below(bins, flat**power, 2 * half + 1) for power in range(3)])
    starts, found = _best_parts(_costs(below, half), most), []
    for first, end in itertools.pairwise(starts):
        count, total, _ = below[:, end] - below[:, first]
        level = 0.0 if first <= half < end else total / count
        found.append((round(level / LEVEL_STEP) * LEVEL_STEP, count))
    levels: dict[float, float] = {}
    for level, count in found:  # a faint one may have become another
        levels[level] = levels.get(level, 0.0) + count
    numbers = torch.tensor(sorted(levels.items()), dtype=torch.float32)
    return Levels(
        numbers[:, 0].contiguous().to(values.device),
        numbers[:, 1].contiguous().to(values.device),
    )


def _below(bins: np.ndarray, weights: np.ndarray, count: int) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(np.bincount(bins, weights, count))])


def _costs(below: np.ndarray, zero_bin: int) -> np.ndarray:
    """Of one level for the bins from each to each: errors, and the price of its bits."""
    count, total, squares = below[:, None, :] - below[:, :, None]
    first, end = np.arange(below.shape[1])[:, None], np.arange(below.shape[1])[None]
    some = np.maximum(count, 1)
    has_zero = (first <= zero_bin) & (zero_bin < end)  # that level may be of no use
    errors = squares - np.where(has_zero, 0.0, total**2 / some)
    bits = count * np.log2(below[0, -1] / some)
    possible = has_zero | ((end > first) & (count > 0))
    return np.where(possible, errors + PRICE * bits, np.inf)


def _best_parts(costs: np.ndarray, most: int) -> list[int]:
    """Where the parts of the cheapest cut begin, and where the last ends."""
    best, came_from, every = [costs[0]], [], np.arange(len(costs))
    for _ in range(most - 1):
        ways = best[-1][:, None] + costs
        came_from.append(ways.argmin(0))
        best.append(ways[came_from[-1], every])
    parts = int(np.argmin([each[-1] for each in best]))
    starts = [costs.shape[0] - 1]
    for earlier in reversed(came_from[:parts]):
        starts.append(int(earlier[starts[-1]]))
    return [0, *starts[::-1]]


class PricedTable(Grid):
    """The levels of `priced_levels`, with a step for each row and each column.

    Args:
        rows: a step for each row, before that of the columns.
        most: levels, of each matrix.
        keep_latents: whether `latents` holds what was rounded, in steps.
    """

    def __init__(self, rows: Tensor, *, most: int, keep_latents: bool = False) -> None:
        super().__init__(rows, keep_latents=keep_latents)
        self.most = most
        self._levels: Levels | None = None

    def begin(self, weight: Tensor, spread: Tensor) -> None:
        super().begin(weight, spread)
        # A row that reaches far beyond the levels of the others gets a wider step.
        size = (weight / self.columns).square().mean(1).sqrt()
        self.rows = coarse(torch.maximum(self.rows, size / (REACH * self.most)))
        self._levels = priced_levels(
            weight / (self.rows[:, None] * self.columns), self.most
        )

    def rounded(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        assert self._levels is not None
        ranks = self._levels.ranks(steps)
        return ranks, self._levels.values[ranks + self._levels.zero]

    def packed(self) -> CompressedTensor:
        assert self._levels is not None
        coded = self._levels.coded(self._ranks.T.contiguous().short())
        return packed_grid(*coded, self.rows, self.columns)
