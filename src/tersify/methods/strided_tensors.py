"""Tensors of torch's channels-last layouts as one vector and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_LAST_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


class StridedTensors:
    """Tensors in order, known by their shapes and strides; each lies in the vector as
    in its own memory.

    One call for each tensor: `as_strided` is a view with all that is known given.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._last = [is_channels_last(t) for t in tensors]
        self._sizes = [t.numel() for t in tensors]
        self._parts = []
        start = 0
        for tensor, last in zip(tensors, self._last, strict=True):
            mold = torch.empty(tensor.shape, device="meta")
            if last:
                mold = mold.to(memory_format=_LAST_FORMATS[tensor.ndim])
            self._parts.append((tuple(mold.shape), mold.stride(), start))
            start += tensor.numel()

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """The tensors, of the shapes that are known, end to end."""
        each = zip(tensors, self._last, self._sizes, strict=True)
        return torch.cat([_flat(t, last, size) for t, last, size in each])

    def pieces(self, flat: Tensor) -> list[Tensor]:
        """The vector's parts in their shapes and layouts: views of it."""
        flat = flat.contiguous()
        first = flat.storage_offset()
        return [
            flat.as_strided(shape, strides, first + start)
            for shape, strides, start in self._parts
        ]


def is_channels_last(tensor: Tensor) -> bool:
    if tensor.ndim not in _LAST_FORMATS or tensor.is_contiguous():
        return False
    return tensor.is_contiguous(memory_format=_LAST_FORMATS[tensor.ndim])


def _flat(tensor: Tensor, last: bool, size: int) -> Tensor:
    """The numbers in the order of the layout; a gradient may lie in another one."""
    if not last:
        return tensor.reshape(-1)
    if tensor.is_contiguous(memory_format=_LAST_FORMATS[tensor.ndim]):
        return tensor.as_strided((size,), (1,))
    return tensor.movedim(1, -1).reshape(-1)
