"""Which units go: the lowest scores of a row, of a layer or of all layers, ties by
their position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TypeVar

import torch
from torch import Tensor

from tersify.methods.selection import kth_smallest
from tersify.ranks import gather, rank, sum_over_ranks

SHORT_ROW = 1 << 16  # counting a number's two halves takes tables of that length
MOST_TOGETHER = 64  # layers whose scores are held at the same time
SCOPES = ("layer", "global", "row")
Item = TypeVar("Item")


def lowest(scores: Tensor, count: int) -> Tensor:
    """True at the `count` smallest of each row; of equal ones those that come first.
    The same on every device.
    """
    if count <= 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    # (rows, 1): the largest score that goes in each row.
    limit = _smallest(scores, min(count, scores.shape[-1]))
    if not scores.is_cuda:  # where a look at a value makes nobody wait
        gone = scores <= limit
        if int(gone.sum()) == count * len(scores):
            # no tie at the limit, as nearly always: a cumulative sum takes eight bytes
            # a weight
            return gone
    below = scores < limit
    ties = scores == limit
    # Of several scores equal to the limit, only as many go as the count allows, from
    # the front: the choice must not depend on a device's sort.
    room = count - below.sum(-1, keepdim=True)
    return below | (ties & (ties.cumsum(-1) <= room))


def _smallest(scores: Tensor, k: int) -> Tensor:
    """The k-th smallest of each row. Torch's own selection is slow for one long row, on
    a CPU as on CUDA.
    """
    if scores.is_cuda:
        # On CUDA even a full sort is faster than torch's selection in one long row.
        return scores.sort(dim=-1).values[..., k - 1 : k]
    if (
        len(scores) == 1
        and scores.dtype == torch.float32
        and scores.shape[1] > SHORT_ROW
    ):
        return kth_smallest(scores, k).view(1, 1)
    return scores.kthvalue(k, dim=-1, keepdim=True).values


def lowest_of_shards(scores: Tensor, count: int) -> Tensor:
    """`lowest` of one row that lies on several ranks one behind the other: this rank's
    part of the answer.
    """
    if count <= 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    limit = kth_smallest(scores, count, reduce=sum_over_ranks)
    below, ties = scores < limit, scores == limit
    # Ties go in rank order, as if the shards lay end to end: this rank's room is what
    # ranks before it leave.
    counts = gather((int(below.sum()), int(ties.sum())))
    room = (
        count
        - sum(found for found, _ in counts)
        - sum(found for _, found in counts[: rank()])
    )
    return below | (ties & (ties.cumsum(0) <= room))


def choose_in_rows(
    layers: Iterable[Tensor], amount: Callable[[int], int]
) -> Iterator[Tensor]:
    """What each row of each layer keeps."""
    return (~lowest(scores, amount(scores.shape[-1])) for scores in layers)


def choose_in_layers(
    layers: Iterable[Tensor], amount: Callable[[int], int]
) -> Iterator[Tensor]:
    """What each layer keeps. Small layers of one size that follow each other are put in
    order by one call.
    """
    for _, same in groupby(enumerate(layers), key=_alike):
        run = [scores for _, scores in same]
        rows = (run[0] if len(run) == 1 else torch.stack(run)).reshape(len(run), -1)
        kept = ~lowest(rows, amount(rows.shape[1]))
        yield from kept.view(len(run), *run[0].shape).unbind()


def _alike(numbered: tuple[int, Tensor]) -> tuple[object, ...]:
    """A key that is equal for layers that are sorted in one call. A large layer has a
    key of its own: stacking it with others would double its memory.
    """
    at, scores = numbered
    together = at // MOST_TOGETHER if scores.numel() <= SHORT_ROW else -1 - at
    return together, scores.shape, scores.dtype, scores.device


def together(
    items: Iterable[Item], weights: Callable[[Item], int]
) -> Iterator[list[Item]]:
    """Items that follow each other, as many as may be held at the same time: a call for
    all of them costs less than a call for each.
    """
    held: list[Item] = []
    room = SHORT_ROW * MOST_TOGETHER
    for item in items:
        held.append(item)
        room -= weights(item)
        if room <= 0 or len(held) == MOST_TOGETHER:
            yield held
            held, room = [], SHORT_ROW * MOST_TOGETHER
    if held:
        yield held


def choose_globally(
    scores: Sequence[Tensor], amount: Callable[[int], int], floor: float
) -> list[Tensor]:
    """What each layer keeps when all compete; a layer's best `floor` fraction, and its
    best unit, are safe.
    """
    flat = [each.reshape(-1) for each in scores]
    safe = [
        ~lowest(each[None], each.numel() - least_kept(each.numel(), floor))[0]
        for each in flat
    ]
    # Infinity: what is safe is never among the lowest.
    contested = torch.where(torch.cat(safe), torch.inf, torch.cat(flat).float())
    gone = lowest(contested[None], amount(contested.numel()))[0]
    parts = gone.split([each.numel() for each in flat])
    return [~part.view_as(each) for part, each in zip(parts, scores, strict=True)]


def least_kept(units: int, floor: float) -> int:
    # The floor rounded up.
    return max(1, -int(-floor * units // 1))
