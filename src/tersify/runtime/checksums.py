"""Whether the module's tensors are still those that were compiled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import attrgetter

import torch
from torch import Tensor

from tersify.runtime.capture import Captured
from tersify.runtime.extension import extension

_version = attrgetter("_version")


class Unchanged:
    """The module's tensors that plans take for constants, as they were when it was
    compiled.

    A call asks torch whether it counted a write to any of them, which takes a few
    microseconds; a new size looks at all their bits, since not every write is counted.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        # A tied tensor is read once.
        found = {id(t): checksum(t) for t in tensors.values()}
        self._sums = {name: found[id(t)] for name, t in tensors.items()}
        self._keep(tensors)

    def _keep(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)
        # Tensors made in inference mode count no versions.
        self._counting = [t for t in tensors.values() if not t.is_inference()]
        self._versions = [*map(_version, self._counting)]

    def forget(self, state: Sequence[Tensor]) -> None:
        """Tensors that turned out to change with the calls themselves."""
        self._keep(_without(self._tensors, state))

    def check(self) -> None:
        """Refuses a module of which torch counted a write that changed something."""
        if [*map(_version, self._counting)] == self._versions:
            return
        versions = [*map(_version, self._counting)]
        self._compare(self._tensors)
        self._versions = versions

    def check_all(self, captured: Captured) -> None:
        """Refuses a module whose tensors, as a new capture found them, are others."""
        self._compare(constants(captured))

    def _compare(self, tensors: Mapping[str, Tensor]) -> None:
        found = {id(t): checksum(t) for t in tensors.values()}
        for name, before in self._sums.items():
            if name in tensors and found[id(tensors[name])] != before:
                raise ValueError(
                    f"{name!r} was changed after the network was compiled; compile again"
                )


def constants(captured: Captured) -> dict[str, Tensor]:
    """The module's tensors that its forward reads and does not change."""
    return _without(captured.graph.parameters, [*captured.graph.state.values()])


def _without(
    tensors: Mapping[str, Tensor], state: Sequence[Tensor]
) -> dict[str, Tensor]:
    changing = {id(t) for t in state}
    return {name: t for name, t in tensors.items() if id(t) not in changing}


def checksum(tensor: Tensor) -> int:
    """Of all its bits, in their order. C++ needs one pass where torch needs two."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.numel() and not tensor.data_ptr():  # zeros that torch keeps no memory for
        tensor = torch.zeros(tensor.shape, dtype=tensor.dtype)
    flat = tensor.reshape(-1).contiguous()
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
