"""The processes (ranks) that train one network together. Every function does nothing
where there is only one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

T = TypeVar("T")


def together() -> bool:
    """Whether this process has joined a group, be it a group of one."""
    return distributed.is_available() and distributed.is_initialized()


def rank() -> int:
    return distributed.get_rank() if together() else 0


def world() -> int:
    """How many ranks there are."""
    return distributed.get_world_size() if together() else 1


def is_first() -> bool:
    return rank() == 0


@torch.no_grad()
def mean_over_ranks_(tensors: Sequence[Tensor]) -> None:
    """Each tensor becomes its mean over the ranks, the same bits on all of them.

    A method that decides by anything but its latents (gradients, the batch) must decide
    on such means: latents are equal on every rank, batches are not.
    """
    if world() > 1:
        for tensor in tensors:
            distributed.all_reduce(tensor)
            tensor /= world()


def sum_over_ranks(counts: Tensor) -> Tensor:
    """The sum of whole numbers over the ranks."""
    if world() == 1:
        return counts
    total = counts.clone()
    distributed.all_reduce(total)
    return total


def gather(value: T) -> list[T]:
    """The value of every rank, in their order; any plain Python value."""
    if world() == 1:
        return [value]
    values: list[Any] = [None] * world()
    distributed.all_gather_object(values, value)
    return values


def first(do: Callable[[], T]) -> T:
    """What the first rank's `do()` returns or raises, on every rank; the others do
    nothing.
    """
    if world() == 1:
        return do()
    # The value and the error, so that all ranks return or raise alike; one that raised
    # alone would leave the others waiting for ever.
    told: list[Any] = [None, None]
    if is_first():
        try:
            told[0] = do()
        except (ValueError, OSError) as error:
            # a user's mistake: every rank must stop with it
            told[1] = error
    distributed.broadcast_object_list(told, src=0)
    if told[1] is not None:
        raise told[1]
    return told[0]


def is_sharded(tensor: Tensor) -> bool:
    """Whether each rank holds a part of it only."""
    return hasattr(tensor, "full_tensor")


def own_part(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor, in the same memory; any other tensor as it
    is.
    """
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor put together, which all ranks must ask for; any other tensor as
    it is.
    """
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
