"""Whether the module's tensors are still those that were compiled."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from tersify.runtime.capture import Captured
from tersify.runtime.extension import extension


def checksums(captured: Captured) -> dict[str, int]:
    """Of the module's tensors that its forward does not change: numbers that an edit of
    them changes.
    """
    state = {id(t) for t in captured.graph.state.values()}
    kept = {
        name: t for name, t in captured.graph.parameters.items() if id(t) not in state
    }
    # A tied tensor is read once.
    found = {id(t): checksum(t) for t in kept.values()}
    return {name: found[id(t)] for name, t in kept.items()}


def check_unchanged(captured: Captured, before: Mapping[str, int]) -> None:
    """Refuses a module that was edited since `before`, its checksums, were taken."""
    now = checksums(captured)
    for name, version in before.items():
        if now.get(name, version) != version:
            raise ValueError(
                f"{name!r} was changed after the network was compiled; compile again for new sizes"
            )


def checksum(tensor: Tensor) -> int:
    """Of all its bits, in their order. C++ needs one pass where torch needs two."""
    flat = tensor.detach().reshape(-1).contiguous()
    module = extension()
    if module is None:
        return checksum_by_torch(flat)
    return int(
        module.checksum(
            flat.data_ptr(), flat.numel() * flat.itemsize, torch.get_num_threads()
        )
    )


def checksum_by_torch(flat: Tensor) -> int:
    """Sums of rows and of columns of the bits, each with a factor of its own: numbers
    that change places count, too.
    """
    if flat.dtype == torch.bool:
        flat = flat.view(torch.uint8)
    width = flat.numel() * flat.itemsize
    # The widest words that divide the bytes: a pass over wide words is quicker.
    word = torch.uint8
    if width % 8 == 0:
        word = torch.int64
    elif width % 4 == 0:
        word = torch.int32
    words = flat.view(word)
    # A square, so that the sums of rows and columns stay short. Odd factors are
    # invertible modulo 2^64, so no change of one word is lost.
    rows = math.isqrt(len(words)) or 1
    square, rest = (
        words[: len(words) // rows * rows].view(rows, -1),
        words[len(words) // rows * rows :],
    )
    sums = (
        square.sum(1, dtype=torch.int64),
        square.sum(0, dtype=torch.int64),
        rest.to(torch.int64),
    )
    return hash(tuple(int((s * (2 * torch.arange(len(s)) + 1)).sum()) for s in sums))
