"""Which arrays of a file are coded together: codes with codes of as many levels, values
with values of their type.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tersify.codec.arrays import encode_arrays
from tersify.codec.directory import Group
from tersify.codec.entries import (
    DTYPE_NAMES,
    DTYPES,
    WHOLE,
    Entry,
    Stored,
    kind_of,
    whole_levels,
)
from tersify.codec.layout import BLOCK_ELEMENTS, Box, blocks_of, box_of, flat_box
from tersify.codec.open_group import OpenGroup, encode_open
from tersify.codec.packing import halved
from tersify.codec.planes import has_few_values
from tersify.cpus import usable_cpus
from tersify.tensor import CompressedTensor

# A tensor of many levels needs tables of its own, and shares with others only what
# suits none of them.
MAX_SHARED_LEVELS, MIN_ALONE = 32, 1 << 14
# elements of an array whose values return: among others, what suits it would be lost
MIN_APART = 1 << 12


class Grouping:
    """Decides which group each part goes to: small parts share one, a large part fills
    several. `small` is a file in which hundred bytes count, whatever older readers know.
    `parts` are groups of codes as they are wanted, coded or not.
    """

    def __init__(
        self, *, half: bool, small: bool = False, parts: Sequence[OpenGroup] = ()
    ) -> None:
        self._half, self._small = half, small
        self._part_of = {
            name: number for number, part in enumerate(parts) for name in part.names
        }
        self._coded = {part.blocks: part.coded for part in parts}
        # The levels of codes, or the dtype of arrays and what sets them apart.
        self.groups: list[tuple[int | str, OpenGroup]] = []
        self._open: dict[Hashable, int] = {}

    def add(self, name: str, tensor: CompressedTensor | Tensor) -> Entry:
        if isinstance(tensor, CompressedTensor):
            return self._add_compressed(name, tensor)
        return Entry(
            name=name,
            shape=tuple(tensor.shape),
            dense=self._store(name, "dense", tensor),
        )

    def _add_compressed(self, name: str, tensor: CompressedTensor) -> Entry:
        flat = tensor.codes.detach().cpu().contiguous().reshape(-1).numpy()
        levels = tensor.levels or 2
        # Wide alphabets need large tables, which suit one tensor only; a small tensor
        # could not pay for its own.
        alone = levels > MAX_SHARED_LEVELS and tensor.numel() >= MIN_ALONE
        part = self._part_of.get(name)
        pool = (levels, part) if part is not None or not alone else None
        first, pieces = self._place(levels, box_of(tensor.shape), pool)
        for group, box, at in pieces:
            codes = flat[at : at + box.elements]
            group.add_codes(name, at, box, codes, tensor.codebook)
        fields = {
            "codebook": tensor.codebook,
            "values": tensor.values,
            "scale": tensor.scale,
            "column_scale": tensor.column_scale,
        }
        parts: dict[str, Any] = {
            part: self._store(name, part, t)
            for part, t in fields.items()
            if t is not None
        }
        return Entry(
            name=name,
            shape=tensor.shape,
            code_group=first,
            axis=tensor.axis,
            format=dict(tensor.format),
            **parts,
        )

    def _store(self, name: str, part: str, tensor: Tensor) -> Stored:
        if tensor.dtype not in DTYPE_NAMES:
            raise ValueError(
                f"{name!r} has dtype {tensor.dtype}; a .terse file holds {', '.join(DTYPES)}"
            )
        plain = tensor.detach().cpu()
        if self._half and plain.dtype == torch.float32:
            plain = halved(plain, name)
        dtype = DTYPE_NAMES[plain.dtype]
        if self._small and part == "codebook" and _is_whole(tensor):
            given = DTYPE_NAMES[tensor.dtype]
            return Stored(
                shape=tuple(tensor.shape), dtype=given, given=given, group=WHOLE
            )
        data = plain.contiguous().reshape(-1).view(torch.uint8).numpy()
        width = plain.dtype.itemsize
        # zstd finds returning values only where other arrays do not lie between them.
        # Planes suit whole numbers of 16 bits, whose first bytes are mostly the same.
        wide = width > 2 or plain.is_floating_point()
        apart = plain.numel() >= MIN_APART and wide and has_few_values(data, width)
        key = f"{dtype} of few values" if apart else dtype
        first, pieces = self._place(key, flat_box(plain.numel()), key)
        for group, box, at in pieces:
            group.elements += box.elements
            group.arrays.append(
                (kind_of(part, name), data[at * width : (at + box.elements) * width])
            )
        return Stored(
            shape=tuple(tensor.shape),
            dtype=dtype,
            given=DTYPE_NAMES[tensor.dtype],
            group=first,
        )

    def _place(
        self, key: int | str, whole: Box, pool: Hashable
    ) -> tuple[int, list[tuple[OpenGroup, Box, int]]]:
        """The first group of a part, and for each of its blocks the group, the box and
        its first element. Parts with the same `pool` share groups; None is shared by none.
        """
        blocks = blocks_of(whole)
        if not blocks:
            return 0, []
        # A part of several blocks fills groups of its own, one after the other: the
        # directory stores the first number only.
        pooled = len(blocks) == 1 and pool is not None
        index = self._open.get(pool, -1) if pooled else -1
        if (
            index < 0
            or self.groups[index][1].elements + whole.elements > BLOCK_ELEMENTS
        ):
            index = len(self.groups)
            self.groups += [(key, OpenGroup()) for _ in blocks]
            if pooled:
                self._open[pool] = index
        placed = []
        at = 0
        for offset, box in enumerate(blocks):
            group = self.groups[index + offset][1]
            placed.append((group, box, at))
            at += box.elements
        return index, placed

    def encode(self) -> tuple[dict[str, bytes], list[Group]]:
        """The sections of all groups, and what the directory says of each."""
        if not self.groups:
            return {}, []
        for _, group in self.groups:
            group.coded = group.coded or self._coded.get(group.blocks)
        # The coders are C++ and let go of Python's lock.
        with ThreadPoolExecutor(min(usable_cpus(), len(self.groups))) as threads:
            coded = list(
                threads.map(
                    partial(_encode, small=self._small), *zip(*self.groups, strict=True)
                )
            )
        sections = {f"g{index}": data for index, (_, data) in enumerate(coded)}
        groups = [Group(codec=codec, crc32=zlib.crc32(data)) for codec, data in coded]
        return sections, groups


def _is_whole(codebook: Tensor) -> bool:
    """Bit for bit: −0.0 is another number in a file."""
    levels = whole_levels(codebook.numel())
    return (
        codebook.ndim == 1
        and codebook.dtype.itemsize > 1
        and codebook.dtype.is_floating_point
        and torch.equal(codebook.detach().cpu(), levels.to(codebook.dtype))
        and not codebook[0].signbit()
    )


def _encode(
    key: int | str, group: OpenGroup, *, small: bool = False
) -> tuple[str, bytes]:
    if isinstance(key, int):
        return encode_open(key, group)
    return _encode_arrays(group, key.partition(" ")[0], small=small)


def _encode_arrays(group: OpenGroup, dtype: str, *, small: bool) -> tuple[str, bytes]:
    arrays = sorted(group.arrays, key=lambda array: array[0].encode())
    width = DTYPES[dtype].itemsize
    kinds = [(kind, len(data) // width) for kind, data in arrays]
    joined = (
        arrays[0][1]
        if len(arrays) == 1
        else np.concatenate([data for _, data in arrays])
    )
    return encode_arrays(
        joined,
        kinds,
        width,
        is_float=DTYPES[dtype].is_floating_point,
        columns=small,
    )
