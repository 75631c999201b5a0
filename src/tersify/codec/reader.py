"""`open` and `load`: a lazy mapping over a `.terse` file, and a module filled from it."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from tersify.codec.codes import decode_codes
from tersify.codec.container import Sections
from tersify.codec.directory import DTYPES, Directory, Entry, Stored, unpack_directory
from tersify.codec.errors import TerseFileError
from tersify.codec.floats import decode_planes
from tersify.codec.layout import Box, blocks_of
from tersify.codec.writer import VERSION, suffix
from tersify.tensor import CompressedModel, CompressedTensor
from tersify.tensor.model import load_state

DEFAULT_MAX_DECODED_BYTES = 1 << 34
Module = TypeVar("Module", bound=nn.Module)


def load(
    path: str | os.PathLike[str],
    into: Module,
    *,
    max_decoded_bytes: int = DEFAULT_MAX_DECODED_BYTES,
) -> Module:
    """Fill a plain module with the file's weights, bit-equal, and leave the packed form on it."""
    load_state(open(path, max_decoded_bytes=max_decoded_bytes).read(), into)
    return into


def open(path: str | os.PathLike[str], *, max_decoded_bytes: int = DEFAULT_MAX_DECODED_BYTES) -> TerseFile:
    """A lazy mapping `name → CompressedTensor | Tensor` over the file."""
    return TerseFile(path, max_decoded_bytes=max_decoded_bytes)


class TerseFile(Mapping[str, "CompressedTensor | Tensor"]):
    """An open `.terse` file. Reading one tensor decodes only the groups that hold it."""

    def __init__(self, path: str | os.PathLike[str], *, max_decoded_bytes: int) -> None:
        self._sections = Sections(path)
        _check_version(self._sections.version)
        self.directory: Directory = unpack_directory(self._sections.read("directory"))
        self._entries = {entry.name: entry for entry in self.directory.entries}
        self._max_decoded_bytes = max_decoded_bytes
        self._members = _members(self.directory.entries)
        self._last_codes: tuple[int, list[np.ndarray]] | None = None
        self._last_arrays: tuple[int, list[bytes]] | None = None
        self.aliases = self.directory.aliases
        self.recipe = self.directory.recipe
        self.metadata = self.directory.metadata
        self.provenance = self.directory.provenance

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, name: str) -> CompressedTensor | Tensor:
        entry = self._entries[self.aliases.get(name, name)]
        self._allow(entry.decoded_bytes, f"{entry.name!r}")
        return self._tensor(entry)

    def read(self) -> CompressedModel:
        """Every tensor, decoded."""
        self._allow(sum(entry.decoded_bytes for entry in self._entries.values()), "the whole file")
        tensors = {name: self._tensor(entry) for name, entry in self._entries.items()}
        return CompressedModel(tensors, aliases=self.aliases, recipe=self.recipe, metadata=self.metadata)

    def _tensor(self, entry: Entry) -> CompressedTensor | Tensor:
        if entry.dense is not None:
            return self._array(entry, "dense", entry.dense)
        pieces = [
            self._codes(group)[self._members[group].index((entry.name, block))]
            for block, group in enumerate(entry.code_groups)
        ]
        codes = np.concatenate(pieces) if len(pieces) != 1 else pieces[0].copy()
        parts = {
            part: self._array(entry, part, stored)
            for part in ("codebook", "values", "scale")
            if (stored := getattr(entry, part)) is not None
        }
        try:
            return CompressedTensor(
                shape=entry.shape,
                codes=torch.from_numpy(codes.astype(np.uint8, copy=False)).reshape(entry.shape),
                axis=entry.axis,
                format=entry.format,
                **parts,  # type: ignore[arg-type]
            )
        except ValueError as problem:
            raise TerseFileError(f"{entry.name!r}: {problem}") from None

    def _array(self, entry: Entry, part: str, stored: Stored) -> Tensor:
        raw = self._arrays(stored.group)[self._members[stored.group].index((entry.name, part))]
        flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
        if stored.dtype == "BOOL" and raw and max(raw) > 1:
            raise TerseFileError(f"{entry.name!r} has a truth value other than 0 and 1")
        return flat.view(DTYPES[stored.dtype]).reshape(stored.shape).to(DTYPES[stored.given])

    def _codes(self, group: int) -> list[np.ndarray]:
        if self._last_codes is None or self._last_codes[0] != group:
            boxes, levels = self._boxes(group)
            self._allow(sum(box.weights for box in boxes), f"group {group}")
            data = self._checked(group)
            self._last_codes = group, decode_codes(self.directory.groups[group].codec, data, boxes, levels)
        return self._last_codes[1]

    def _boxes(self, group: int) -> tuple[list[Box], int]:
        boxes = []
        alphabets = set()
        for name, block in self._members[group]:
            if isinstance(block, str):
                raise TerseFileError(f"group {group} holds codes and arrays")
            boxes.append(blocks_of(self._entries[name].shape)[block])
            alphabets.add(self._entries[name].levels)
        if len(alphabets) != 1:
            raise TerseFileError(f"group {group} mixes alphabets of {sorted(alphabets)} codes")
        return boxes, alphabets.pop()

    def _arrays(self, group: int) -> list[bytes]:
        if self._last_arrays is None or self._last_arrays[0] != group:
            sizes = []
            for name, part in self._members[group]:
                if not isinstance(part, str):
                    raise TerseFileError(f"group {group} holds codes and arrays")
                stored: Stored = getattr(self._entries[name], part)
                sizes.append((DTYPES[stored.dtype].itemsize, stored.stored_bytes))
            self._allow(sum(total for _, total in sizes), f"group {group}")
            codec = self.directory.groups[group].codec
            if codec != "planes":
                raise TerseFileError(f"unknown codec {codec!r}; a newer tersify may know it")
            self._last_arrays = group, decode_planes(self._checked(group), sizes)
        return self._last_arrays[1]

    def _checked(self, group: int) -> bytes:
        data = self._sections.read(f"g{group}")
        if zlib.crc32(data) != self.directory.groups[group].crc32:
            raise TerseFileError(f"group {group} is damaged: its checksum does not match")
        return data

    def _allow(self, size_bytes: int, what: str) -> None:
        if size_bytes > self._max_decoded_bytes:
            raise TerseFileError(
                f"{what} decodes to {size_bytes} bytes, max_decoded_bytes allows {self._max_decoded_bytes}"
            )


def _members(entries: list[Entry]) -> dict[int, list[tuple[str, Any]]]:
    """What each group holds, in its order: (name, block number) for codes, (name, part) for arrays."""
    codes: dict[int, list[tuple[str, Any]]] = {}
    arrays: dict[int, list[tuple[str, Any]]] = {}
    for entry in entries:
        for block, group in enumerate(entry.code_groups):
            codes.setdefault(group, []).append((entry.name, block))
        for part in ("dense", "codebook", "values", "scale"):
            stored = getattr(entry, part)
            if stored is not None:
                arrays.setdefault(stored.group, []).append((entry.name, part))
    for group, members in arrays.items():
        members.sort(key=lambda member: suffix(member[0]))
        codes.setdefault(group, []).extend(members)
    return codes


def _check_version(version: str) -> None:
    major = version.partition(".")[0]
    if major != VERSION.partition(".")[0]:
        raise TerseFileError(f"the file has format version {version}, this tersify reads {VERSION}; upgrade tersify")
