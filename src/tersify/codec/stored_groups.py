"""Which arrays of a file are coded together: codes with codes of as many levels, values
with values of their type.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tersify.codec.arrays import encode_arrays
from tersify.codec.codes import Meaning
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
from tersify.codec.native import Codes
from tersify.codec.packing import halved
from tersify.codec.planes import has_few_values
from tersify.codec.split import encode_group
from tersify.cpus import usable_cpus
from tersify.tensor import CompressedTensor

# A tensor of many levels needs tables of its own, and shares with others only what
# suits none of them.
MAX_SHARED_LEVELS, MIN_ALONE = 32, 1 << 14
# Tensors of a group that are few enough to be coded one by one as well, how large the
# smallest must be, and what a group of its own takes in the header and the directory.
FEW_TENSORS, MIN_APART_CODES, GROUP_BYTES = 8, 1 << 12, 96
# elements of an array whose values return: among others, what suits it would be lost
MIN_APART = 1 << 12


@dataclass
class OpenGroup:
    """A group in the making."""

    elements: int = 0
    # of the tensors behind the boxes, and where each begins there
    names: list[str] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    codes: list[Codes] = field(default_factory=list)
    codebooks: list[Tensor | None] = field(default_factory=list)
    arrays: list[tuple[str, Codes]] = field(default_factory=list)
    coded: tuple[str, bytes] | None = None  # what it became, where that was tried

    def apart(self) -> dict[str, OpenGroup]:
        """Each tensor's codes as a group of their own."""
        made: dict[str, OpenGroup] = {}
        for name, begin, box, codes, codebook in zip(
            self.names, self.begins, self.boxes, self.codes, self.codebooks, strict=True
        ):
            own = made.setdefault(name, OpenGroup())
            own.elements += box.elements
            own.names.append(name)
            own.begins.append(begin)
            own.boxes.append(box)
            own.codes.append(codes)
            own.codebooks.append(codebook)
        return made

    def meaning(self, levels: int) -> Meaning:
        codebooks = [_mean_levels(codebook, levels) for codebook in self.codebooks]
        return Meaning(
            activity=np.stack([_activity(codebook) for codebook in codebooks]),
            order=np.argsort(np.stack(codebooks).mean(0), kind="stable").astype(
                np.uint8
            ),
        )


class Grouping:
    """Decides which group each part goes to: small parts share one, a large part fills
    several. `small` is a file in which hundred bytes count, whatever older readers know.
    """

    def __init__(
        self, *, half: bool, small: bool = False, alone: Collection[str] = ()
    ) -> None:
        self._half, self._small, self._alone = half, small, alone
        # The levels of codes, or the dtype of arrays and what sets them apart.
        self.groups: list[tuple[int | str, OpenGroup]] = []
        self._open: dict[int | str, int] = {}

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
        alone = name in self._alone or (
            levels > MAX_SHARED_LEVELS and tensor.numel() >= MIN_ALONE
        )
        first, pieces = self._place(levels, box_of(tensor.shape), alone=alone)
        for group, box, at in pieces:
            group.names.append(name)
            group.begins.append(at)
            group.boxes.append(box)
            group.codes.append(flat[at : at + box.elements])
            group.codebooks.append(tensor.codebook)
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
        apart = plain.numel() >= MIN_APART and has_few_values(data, width)
        first, pieces = self._place(
            f"{dtype} of few values" if apart else dtype, flat_box(plain.numel())
        )
        for group, box, at in pieces:
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
        self, key: int | str, whole: Box, *, alone: bool = False
    ) -> tuple[int, list[tuple[OpenGroup, Box, int]]]:
        """The first group of a part, and for each of its blocks the group, the box and
        its first element.
        """
        blocks = blocks_of(whole)
        if not blocks:
            return 0, []
        # A part of several blocks fills groups of its own, one after the other: the
        # directory stores the first number only.
        pooled = len(blocks) == 1 and not alone
        index = self._open.get(key, -1) if pooled else -1
        if (
            index < 0
            or self.groups[index][1].elements + whole.elements > BLOCK_ELEMENTS
        ):
            index = len(self.groups)
            self.groups += [(key, OpenGroup()) for _ in blocks]
            if pooled:
                self._open[key] = index
        placed = []
        at = 0
        for offset, box in enumerate(blocks):
            group = self.groups[index + offset][1]
            group.elements += box.elements
            placed.append((group, box, at))
            at += box.elements
        return index, placed

    def better_alone(self) -> set[str]:
        """Tensors that take fewer bytes in groups of their own: what suits one, such as
        pairs of codes or repeats, need not suit its neighbours.
        """
        found: set[str] = set()
        for levels, group in self.groups:
            if not isinstance(levels, int):
                continue
            own = group.apart()
            sizes = [each.elements for each in own.values()]
            if not 1 < len(own) <= FEW_TENSORS or min(sizes) < MIN_APART_CODES:
                continue
            group.coded = _encode(levels, group)
            apart = sum(
                len(_encode(levels, each)[1]) + GROUP_BYTES for each in own.values()
            )
            if apart < len(group.coded[1]) + GROUP_BYTES:
                found |= own.keys()
        return found

    def encode(self) -> tuple[dict[str, bytes], list[Group]]:
        """The sections of all groups, and what the directory says of each."""
        if not self.groups:
            return {}, []
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
    if group.coded is not None:
        return group.coded
    if isinstance(key, int):
        return _encode_codes(group, key)
    return _encode_arrays(group, key.partition(" ")[0], small=small)


def _encode_codes(group: OpenGroup, levels: int) -> tuple[str, bytes]:
    return encode_group(
        np.concatenate(group.codes), group.boxes, levels, group.meaning(levels)
    )


def _mean_levels(codebook: Tensor | None, levels: int) -> np.ndarray:
    """The level behind each code, over all rows of a codebook; a mask has the levels 0
    and 1.
    """
    if codebook is None:
        return np.array([0.0, 1.0])
    flat = codebook.detach().cpu().double().reshape(-1, levels).numpy()
    # Levels only guide the coder; NaN or infinity among them must not stop it.
    return np.nan_to_num(
        flat.mean(0) if len(flat) else np.zeros(levels), posinf=0.0, neginf=0.0
    )


def _activity(levels: np.ndarray) -> Codes:
    sizes = np.abs(levels)
    return (
        np.round(sizes * (255.0 / sizes.max())).astype(np.uint8)
        if sizes.max() > 0
        else sizes.astype(np.uint8)
    )


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
