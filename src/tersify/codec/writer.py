"""`save`: a packed model becomes groups of pooled codes and pooled arrays, and one
directory.
"""

from __future__ import annotations

import os
import platform
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from tersify.codec.arrays import encode_arrays
from tersify.codec.codes import Meaning
from tersify.codec.container import Sections, size_of_sections, write_sections
from tersify.codec.directory import Directory, Group, pack_directory
from tersify.codec.duplicates import equal_tensors
from tersify.codec.entries import DTYPE_NAMES, DTYPES, Entry, Stored, kind_of
from tersify.codec.layout import BLOCK_ELEMENTS, Box, blocks_of, box_of, flat_box
from tersify.codec.native import Codes
from tersify.codec.packing import halved, packed_losslessly
from tersify.codec.planes import has_few_values
from tersify.codec.split import encode_group
from tersify.cpus import usable_cpus
from tersify.tensor import CompressedModel, CompressedTensor
from tersify.tensor.inputs import METADATA
from tersify.tensor.model import GRAPH, check_names

VERSION, SECOND_VERSION = "1.2", "1.1"
FIRST_VERSION, FIRST_CODECS = "1.0", {"packed", "rans", "planes"}
# A tensor of many levels needs tables of its own, and shares with others only what
# suits none of them.
MAX_SHARED_LEVELS, MIN_ALONE = 32, 1 << 14
# elements of an array whose values return: among others, what suits it would be lost
MIN_APART = 1 << 12
PLAN = "plan"  # the section of the lowered network, which version 1.2 added


def save(
    model: Mapping[str, CompressedTensor | Tensor],
    path: str | os.PathLike[str],
    *,
    floats: Literal["as-is", "fp16"] = "as-is",
    network: nn.Module | None = None,
    example: Tensor | Sequence[Tensor] | None = None,
    plan_section: bytes | None = None,
) -> int:
    """Write a packed model, or any mapping `name → CompressedTensor | Tensor`; returns
    the file's bytes.

    Lossless by default, and each dense tensor is stored in the smallest form that is
    exact, as `pack` finds it.

    Args:
        model: what `session.pack()`, `compress_` or `pack` gave, or a state dict.
        path: the file to write; it appears when all of it is written.
        floats: "as-is", or "fp16" to store 32-bit floats (codebooks, scales, values, dense tensors) in half
            precision; they are given back as 32-bit floats with the rounded values.
        network: a plain network of these weights. With an example, its graph of operations goes into the file, and
            `load` needs no `into`.
        example: the network's input, or one for each argument.
        plan_section: the lowered network, as `tersify.save` makes it.
    """
    made = encoded(model, floats=floats, network=network, example=example)
    if plan_section is None:
        return write_sections(path, made.sections, made.version)
    return write_sections(path, made.sections | {PLAN: plan_section}, VERSION)


def add_plan(file: Sections, out: str | os.PathLike[str], plan: bytes) -> int:
    """The file with this plan instead of its own, all else as it is."""
    kept = {name: file.read(name) for name in file.names() if name != PLAN}
    return write_sections(out, kept | {PLAN: plan}, VERSION)


@dataclass(frozen=True, eq=False)
class Encoded:
    """A file in memory: its sections, and what went into each group."""

    sections: dict[str, bytes]
    version: str
    groups: list[Group]
    pools: list[tuple[int | str, Pool]]  # the levels of codes or the dtype of arrays

    @property
    def size_bytes(self) -> int:
        return size_of_sections(self.sections, self.version)


def encoded(
    model: Mapping[str, CompressedTensor | Tensor],
    *,
    floats: Literal["as-is", "fp16"] = "as-is",
    network: nn.Module | None = None,
    example: Tensor | Sequence[Tensor] | None = None,
) -> Encoded:
    """What `save` writes."""
    if not isinstance(model, Mapping):
        raise ValueError(
            f"save takes what session.pack() or compress_ gave, or a mapping of names to tensors, got a "
            f"{type(model).__name__}; a plain module is saved by its state_dict(), or by tersify.pack(module)"
        )
    if floats not in ("as-is", "fp16"):
        raise ValueError(f"floats must be 'as-is' or 'fp16', got {floats!r}")
    half = floats == "fp16"
    packed = packed_losslessly(model, half=half)
    if network is not None:
        packed.metadata |= {GRAPH: _graph_of(network, example, packed)}
    plan = _Plan(half=half)
    same = equal_tensors(packed)
    entries = [
        Entry(name=name, shape=tuple(tensor.shape), same=same[name])
        if name in same
        else plan.add(name, tensor)
        for name, tensor in packed.items()
    ]
    sections, groups = plan.encode()
    directory = Directory(
        entries=entries,
        groups=groups,
        aliases=packed.aliases,
        recipe=packed.recipe,
        metadata=packed.metadata,
        provenance=_provenance(),
    )
    all_sections = {"directory": pack_directory(directory), **sections}
    return Encoded(all_sections, _version(directory), groups, plan.groups)


def _graph_of(
    network: nn.Module, example: Any, packed: CompressedModel
) -> dict[str, Any]:
    from tersify.graph import recorded  # torch.export takes a second to import

    if example is None:
        raise ValueError(
            "a network is written down with an example of its input; give example="
        )
    if packed.metadata.get(METADATA):
        raise ValueError(
            "a graph has no quantized activations, and this network does; save it without network="
        )
    check_names(
        {name: tuple(packed[name].shape) for name in (*packed, *packed.aliases)},
        network,
    )
    return recorded(network, example)


def _version(directory: Directory) -> str:
    """The first version that has all the file needs, so that older readers read what
    they can.
    """
    if any(entry.column_scale is not None for entry in directory.entries):
        return VERSION
    old = all(group.codec in FIRST_CODECS for group in directory.groups)
    return (
        FIRST_VERSION
        if old and all(entry.same is None for entry in directory.entries)
        else SECOND_VERSION
    )


def _provenance() -> dict[str, Any]:
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        # an import would tie shipping to training
        "tersify": sys.modules["tersify"].__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


@dataclass
class Pool:
    """A group in the making."""

    elements: int = 0
    # of the tensors behind the boxes, and where each begins there
    names: list[str] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    codes: list[Codes] = field(default_factory=list)
    codebooks: list[Tensor | None] = field(default_factory=list)
    arrays: list[tuple[str, Codes]] = field(default_factory=list)

    def meaning(self, levels: int) -> Meaning:
        codebooks = [_mean_levels(codebook, levels) for codebook in self.codebooks]
        return Meaning(
            activity=np.stack([_activity(codebook) for codebook in codebooks]),
            order=np.argsort(np.stack(codebooks).mean(0), kind="stable").astype(
                np.uint8
            ),
        )


class _Plan:
    """Decides which group each part goes to: small parts share one, a large part fills
    several.
    """

    def __init__(self, *, half: bool) -> None:
        self._half = half
        # The levels of codes, or the dtype of arrays and what sets them apart.
        self.groups: list[tuple[int | str, Pool]] = []
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
        alone = levels > MAX_SHARED_LEVELS and tensor.numel() >= MIN_ALONE
        first, pieces = self._place(levels, box_of(tensor.shape), alone=alone)
        for pool, box, at in pieces:
            pool.names.append(name)
            pool.begins.append(at)
            pool.boxes.append(box)
            pool.codes.append(flat[at : at + box.elements])
            pool.codebooks.append(tensor.codebook)
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
        data = plain.contiguous().reshape(-1).view(torch.uint8).numpy()
        width = plain.dtype.itemsize
        apart = plain.numel() >= MIN_APART and has_few_values(data, width)
        first, pieces = self._place(
            f"{dtype} of few values" if apart else dtype, flat_box(plain.numel())
        )
        for pool, box, at in pieces:
            pool.arrays.append(
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
    ) -> tuple[int, list[tuple[Pool, Box, int]]]:
        """The first group of a part, and for each of its blocks the pool, the box and
        its first element.
        """
        blocks = blocks_of(whole)
        if not blocks:
            return 0, []
        pooled = len(blocks) == 1 and not alone
        index = self._open.get(key, -1) if pooled else -1
        if (
            index < 0
            or self.groups[index][1].elements + whole.elements > BLOCK_ELEMENTS
        ):
            index = len(self.groups)
            self.groups += [(key, Pool()) for _ in blocks]
            if pooled:
                self._open[key] = index
        placed = []
        at = 0
        for offset, box in enumerate(blocks):
            pool = self.groups[index + offset][1]
            pool.elements += box.elements
            placed.append((pool, box, at))
            at += box.elements
        return index, placed

    def encode(self) -> tuple[dict[str, bytes], list[Group]]:
        with ThreadPoolExecutor(max(1, min(usable_cpus(), len(self.groups)))) as pool:
            coded = (
                list(pool.map(_encode, *zip(*self.groups, strict=True)))
                if self.groups
                else []
            )
        sections = {f"g{index}": data for index, (_, data) in enumerate(coded)}
        return sections, [
            Group(codec=codec, crc32=zlib.crc32(data)) for codec, data in coded
        ]


def _encode(key: int | str, pool: Pool) -> tuple[str, bytes]:
    return (
        _encode_codes(pool, key)
        if isinstance(key, int)
        else _encode_arrays(pool, key.partition(" ")[0])
    )


def _encode_codes(pool: Pool, levels: int) -> tuple[str, bytes]:
    return encode_group(
        np.concatenate(pool.codes), pool.boxes, levels, pool.meaning(levels)
    )


def _mean_levels(codebook: Tensor | None, levels: int) -> np.ndarray:
    """The level behind each code, over all rows of a codebook; a mask has the levels 0
    and 1.
    """
    if codebook is None:
        return np.array([0.0, 1.0])
    flat = codebook.detach().cpu().double().reshape(-1, levels).numpy()
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


def _encode_arrays(pool: Pool, dtype: str) -> tuple[str, bytes]:
    arrays = sorted(pool.arrays, key=lambda array: array[0].encode())
    width = DTYPES[dtype].itemsize
    kinds = [(kind, len(data) // width) for kind, data in arrays]
    joined = (
        arrays[0][1]
        if len(arrays) == 1
        else np.concatenate([data for _, data in arrays])
    )
    return encode_arrays(joined, kinds, width, is_float=DTYPES[dtype].is_floating_point)
