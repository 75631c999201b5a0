"""The k-th smallest of many numbers in two passes: exact, linear in their count, and
summable over shards.

A quickselect copies what it searches and needs it in one place. Here each pass counts
16 bits of the numbers' order, chunk by chunk; where a tensor is spread over ranks the
counts are added up, and every rank finds the same number.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

CHUNK = 1 << 20  # fits in a core's cache with its temporaries
BINS = 1 << 16
Reduce = Callable[[Tensor], Tensor]  # counts of this shard → counts of all


def kth_smallest(
    scores: Tensor, k: int, reduce: Reduce = lambda counts: counts
) -> Tensor:
    """The k-th smallest (from 1) of float32 scores of any shape; NaN counts as larger
    than all.
    """
    flat = scores.detach().reshape(-1)
    counts = torch.zeros(BINS, dtype=torch.int64, device=flat.device)
    for chunk in flat.split(CHUNK):
        # The upper 16 bits, signed, so shifted to begin at zero.
        counts += torch.bincount((_ordered(chunk) >> 16) + BINS // 2, minlength=BINS)
    high, k = _bin_of(reduce(counts), k)
    counts.zero_()
    for chunk in flat.split(CHUNK):
        keys = _ordered(chunk)
        # Second pass: only numbers of the bin that holds the k-th, by their lower 16
        # bits.
        near = keys[(keys >> 16) == high - BINS // 2]
        counts += torch.bincount(near & (BINS - 1), minlength=BINS)
    low, _ = _bin_of(reduce(counts), k)
    key = torch.tensor(
        [((high - BINS // 2) << 16) | low], dtype=torch.int32, device=flat.device
    )
    return _flipped(key).view(torch.float32)[0]


def _bin_of(counts: Tensor, k: int) -> tuple[int, int]:
    """The bin that holds the k-th, and its place in there."""
    sums = counts.cumsum(0)
    # The first bin at which k numbers are reached.
    found = int(torch.searchsorted(sums, k))
    return found, k - (int(sums[found - 1]) if found else 0)


def _ordered(values: Tensor) -> Tensor:
    """Integers in the order of the floats: the bits, with those of negative numbers the
    other way round.
    """
    # + 0.0 makes −0.0 and 0.0 one number
    return _flipped((values + 0.0).view(torch.int32))


def _flipped(bits: Tensor) -> Tensor:
    # The arithmetic shift gives all ones for a negative number, so its magnitude bits
    # flip and the sign bit stays. The function is its own inverse.
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
