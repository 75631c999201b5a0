"""Which tensor of the file a packed weight is, and how: as it stands, its signs, or one
number for each code. What is none of them, the plan holds itself.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tersify.runtime.portable.phases import without_phases
from tersify.tensor import CompressedTensor

Array = npt.NDArray[np.float32]
Found = tuple[list[Any], Array | None]
SAMPLE = 1 << 12


class Sources:
    """The tensors of a file, compared with what kernels are given. Nothing is believed
    that is not equal.
    """

    def __init__(self, tensors: Mapping[str, CompressedTensor | Tensor]) -> None:
        self._tensors = {
            name: t for name, t in tensors.items() if t.dtype.is_floating_point
        }
        self._dense: dict[str, Array] = {}
        self._found: dict[tuple[Any, ...], Found] = {}

    def find(self, array: Array, *, only_signs: bool = False) -> Found:
        """A source for the plan, and the numbers that go with it: those of each code,
        or all of them.
        """
        # other batches ask again
        key = (
            only_signs,
            array.shape,
            hashlib.blake2b(np.ascontiguousarray(array).tobytes()).digest(),
        )
        if key not in self._found:
            found = self._search(array)
            if found is None and only_signs:
                array = np.sign(array)
                found = self._search(array)
            self._found[key] = found or (["numbers"], array.reshape(-1))
        return self._found[key]

    def _search(self, array: Array) -> Found | None:
        for name, tensor in self._tensors.items():
            for turned, other in _turned(array, tuple(tensor.shape)):
                flat = np.ascontiguousarray(other.reshape(-1))
                found = self._source(name, tensor, flat, turned)
                if found is not None:
                    return found
        return None

    def _source(
        self,
        name: str,
        tensor: CompressedTensor | Tensor,
        flat: Array,
        turned: bool | list[int],
    ) -> Found | None:
        if (
            isinstance(tensor, CompressedTensor)
            and tensor.codebook is not None
            and tensor.axis is None
        ):
            table = _table(
                tensor.codes.cpu().reshape(-1).numpy(), flat, tensor.codebook.shape[-1]
            )
            if table is not None:
                return ["codes", name, turned], table
        dense = self._as_floats(name, tensor)
        if np.array_equal(dense, flat):
            return ["tensor", name, turned], None
        if np.array_equal(np.sign(dense), flat):
            return ["signs", name, turned], None
        return None

    def _as_floats(self, name: str, tensor: CompressedTensor | Tensor) -> Array:
        if name not in self._dense:
            dense = (
                tensor.to_dense() if isinstance(tensor, CompressedTensor) else tensor
            )
            # one at a time
            self._dense = {
                name: dense.detach().to(torch.float32).cpu().reshape(-1).numpy()
            }
        return self._dense[name]


def _turned(
    array: Array, shape: tuple[int, ...]
) -> Iterator[tuple[bool | list[int], Array]]:
    """How a tensor of that shape may have become the array, each with that tensor."""
    if math.prod(shape) == array.size:
        yield False, array
        if len(shape) == 2 == array.ndim:
            yield True, array.T
    yield from without_phases(array, shape)


def _table(codes: npt.NDArray[np.uint8], flat: Array, levels: int) -> Array | None:
    """One number a code, where the weight is no more than that."""
    table = np.zeros(levels, np.float32)
    # most tensors of the same size are told apart by a few numbers
    for part in (slice(SAMPLE), slice(None)):
        table[codes[part]] = flat[part]
        if not np.array_equal(table[codes[part]], flat[part]):
            return None
    return table
