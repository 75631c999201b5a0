"""Which tensor of the file a packed weight is, and how: as it stands, its signs, or one
number for each code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tersify.tensor import CompressedTensor

Array = npt.NDArray[np.float32]
Found = tuple[list[Any], list[float] | None]
MAX_OWN_NUMBERS = 1 << 14  # of a weight that is no tensor of the file
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

    def find(self, array: Array) -> Found:
        """A source for the plan, and the numbers that go with it: those of each code,
        or all of them.
        """
        # other batches ask again
        key = (
            array.shape,
            hashlib.blake2b(np.ascontiguousarray(array).tobytes()).digest(),
        )
        if key not in self._found:
            self._found[key] = self._search(array)
        return self._found[key]

    def _search(self, array: Array) -> Found:
        for name, tensor in self._tensors.items():
            if tensor.numel() != array.size:
                continue
            for turned in (
                (False, True) if len(tensor.shape) == 2 == array.ndim else (False,)
            ):
                flat = (array.T if turned else array).reshape(-1)
                found = self._source(name, tensor, np.ascontiguousarray(flat), turned)
                if found is not None:
                    return found
        if array.size > MAX_OWN_NUMBERS:
            shape = "×".join(map(str, array.shape))
            raise ValueError(
                f"a weight of {shape} is not in the file as it stands, so the network gets no plan; save the network "
                "whose weights the file holds"
            )
        return ["numbers"], array.reshape(-1).tolist()

    def _source(
        self, name: str, tensor: CompressedTensor | Tensor, flat: Array, turned: bool
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


def _table(
    codes: npt.NDArray[np.uint8], flat: Array, levels: int
) -> list[float] | None:
    """One number a code, where the weight is no more than that."""
    table = np.zeros(levels, np.float32)
    # most tensors of the same size are told apart by a few numbers
    for part in (slice(SAMPLE), slice(None)):
        table[codes[part]] = flat[part]
        if not np.array_equal(table[codes[part]], flat[part]):
            return None
    return [float(number) for number in table]
