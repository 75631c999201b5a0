"""`open` and `load`: a lazy mapping over a `.terse` file, and a module filled from it."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from tersify.codec.arrays import decode_arrays
from tersify.codec.container import Sections
from tersify.codec.directory import Directory, unpack_directory
from tersify.codec.entries import DTYPES, Entry, Stored
from tersify.codec.errors import TerseFileError
from tersify.codec.members import CodeGroup, Contents, contents_of
from tersify.codec.native import Codes
from tersify.codec.split import decode_group
from tersify.codec.views import seen
from tersify.codec.writer import VERSION
from tersify.cpus import usable_cpus
from tersify.tensor import CompressedModel, CompressedTensor
from tersify.tensor.blocks import block_names, joined, joined_shapes
from tersify.tensor.inputs import METADATA, read_facts
from tersify.tensor.model import check_names, load_state
from tersify.tensor.torch_prune_names import names_as_in, refresh_masked, weights_as_in

DEFAULT_MAX_DECODED_BYTES = 1 << 34
MIN_DIRECTORY_BYTES = 1 << 16
Module = TypeVar("Module", bound=nn.Module)


def load(
    path: str | os.PathLike[str],
    into: Module,
    *,
    max_decoded_bytes: int = DEFAULT_MAX_DECODED_BYTES,
    threads: int | None = None,
) -> Module:
    """Fill a module with the file's weights, bit-equal, and leave the packed form on
    it.

    The module and the file may differ in that torch.nn.utils.prune has masks on the one
    and not on the other.

    Args:
        path: a `.terse` file. It holds no code, and one that is damaged or hostile raises `TerseFileError`.
        into: a module with the parameters and buffers of the file.
        max_decoded_bytes: the most memory the file may decode to; a larger one is refused before anything is read.
        threads: threads that decode; as many as torch uses by default.
    """
    _check_module(into)
    file = open(path, max_decoded_bytes=max_decoded_bytes)
    with _naming(path):
        # before anything is decoded
        with _the_files_fault():
            shapes = joined_shapes(file.shapes(), file.aliases, file.metadata)
        check_names(names_as_in(shapes, into.state_dict()), into)
        with _the_files_fault():
            read_facts(file.metadata.get(METADATA, {}), into)
    packed = file.read(threads=threads)
    with _naming(path):
        if block_names(file.metadata):
            packed = joined(packed)
        load_state(weights_as_in(packed, into), into)
    refresh_masked(into)
    return into


def _check_module(given: object) -> None:
    if not isinstance(given, nn.Module):
        told = (
            f"the class {given.__name__}"
            if isinstance(given, type)
            else f"a {type(given).__name__}"
        )
        raise ValueError(
            f"into must be a network, got {told}; give a fresh torch.nn.Module, such as MyNet()"
        )


def open(
    path: str | os.PathLike[str], *, max_decoded_bytes: int = DEFAULT_MAX_DECODED_BYTES
) -> TerseFile:
    """A lazy mapping `name → CompressedTensor | Tensor` over the file.

    Args:
        path: a `.terse` file.
        max_decoded_bytes: the most memory one call may decode to.
    """
    return TerseFile(path, max_decoded_bytes=max_decoded_bytes)


class TerseFile(Mapping[str, "CompressedTensor | Tensor"]):
    """An open `.terse` file. Reading one tensor decodes only the groups that hold it."""

    def __init__(self, path: str | os.PathLike[str], *, max_decoded_bytes: int) -> None:
        self._path = path
        self._max_decoded_bytes = max_decoded_bytes
        # Parsed JSON takes some twenty times its text, so that the text may take a
        # small share only.
        directory_bytes = max(MIN_DIRECTORY_BYTES, max_decoded_bytes // 16)
        with _naming(path):
            self._sections = Sections(path)
            _check_version(self._sections.version)
            self.directory: Directory = unpack_directory(
                self._sections.read("directory"), max_bytes=directory_bytes
            )
            _check_checksums(self.directory, self._sections)
            self.contents: Contents = contents_of(self.directory)
        self._entries = {entry.name: entry for entry in self.directory.entries}
        self._recent: dict[int, Codes] = {}
        self.aliases = self.directory.aliases
        self.recipe = self.directory.recipe
        self.metadata = self.directory.metadata
        self.provenance = self.directory.provenance

    @property
    def file_bytes(self) -> int:
        return self._sections.file_bytes

    @property
    def version(self) -> str:
        return self._sections.version

    def section_names(self) -> list[str]:
        return self._sections.names()

    def section(self, name: str) -> bytes:
        """The bytes of a section as they lie in the file."""
        return self._sections.read(name)

    def group_bytes(self, index: int) -> int:
        """The size of a group on disk."""
        return self._sections.size_bytes(f"g{index}")

    def coders(self, entry: Entry) -> str:
        """The coder of a tensor's codes, or of its values where it is dense."""
        entry = self._origin(entry)
        spans = self.contents.spans(entry, "codes" if entry.dense is None else "dense")
        return (
            "+".join(
                sorted({self.directory.groups[group].codec for group, _, _ in spans})
            )
            or "none"
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape under every name, aliases too, without decoding anything."""
        own = {name: entry.shape for name, entry in self._entries.items()}
        return own | {alias: own[name] for alias, name in self.aliases.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self.aliases

    def __getitem__(self, name: str) -> CompressedTensor | Tensor:
        asked = self._entries[self.aliases.get(name, name)]
        entry = self._origin(asked)
        groups = self.contents.groups_of(entry)
        with _naming(self._path):
            self._allow(
                # A tensor may be small in a large group, and large where it expands (a
                # codebook per row, fp16 given back as float32).
                max(self._bytes_of(asked), self.contents.decoded_bytes(groups)),
                repr(asked.name),
            )
            recent = self._recent  # another thread may put others in its place
            decoded = {g: recent[g] if g in recent else self._decode(g) for g in groups}
            tensor = _as(asked, self._tensor(entry, decoded, copy=True))
        # the pools among them: the next tensor is often in the same ones
        self._recent = decoded
        return tensor

    def read(self, *, threads: int | None = None) -> CompressedModel:
        """Every tensor, decoded by `threads` threads (as many as there are processors
        for this process).
        """
        with _naming(self._path):
            return self._read(threads)

    def _read(self, threads: int | None) -> CompressedModel:
        groups = self.contents.all_groups()
        total = sum(map(self._bytes_of, self._entries.values()))
        self._allow(max(total, self.contents.decoded_bytes(groups)), "the whole file")
        # The decoders are C++ and let go of Python's lock, so threads work side by
        # side.
        workers = min(threads or usable_cpus(), len(groups))
        if workers > 1:
            with ThreadPoolExecutor(workers) as pool:
                decoded = dict(zip(groups, pool.map(self._decode, groups), strict=True))
        else:
            decoded = {group: self._decode(group) for group in groups}
        # copy=False: slices of a group's buffer are views, since all of the buffer is
        # used.
        stored = {
            name: self._tensor(entry, decoded, copy=False)
            for name, entry in self._entries.items()
            if entry.same is None
        }
        tensors = {
            name: stored[name]
            if entry.same is None
            else _copy(_as(entry, stored[entry.same.name]))
            for name, entry in self._entries.items()
        }
        return CompressedModel(
            tensors, aliases=self.aliases, recipe=self.recipe, metadata=self.metadata
        )

    def _origin(self, entry: Entry) -> Entry:
        """The tensor that holds the content of this one."""
        return entry if entry.same is None else self._entries[entry.same.name]

    def _bytes_of(self, entry: Entry) -> int:
        origin = self._origin(entry)
        is_view = entry.shape != origin.shape or (entry.same and entry.same.turned)
        return origin.view_bytes if is_view else origin.decoded_bytes

    def _tensor(
        self, entry: Entry, decoded: dict[int, Codes], *, copy: bool
    ) -> CompressedTensor | Tensor:
        parts = {
            part: _array(
                self.contents.take(decoded, entry, part, copy=copy), stored, entry.name
            )
            for part, stored in entry.parts().items()
        }
        if entry.dense is not None:
            return parts["dense"]
        codes = self.contents.take(decoded, entry, "codes", copy=copy)
        if entry.codebook is not None and entry.has_whole_levels:
            parts["codebook"] = entry.codebook.whole_numbers()
        try:
            return CompressedTensor(
                shape=entry.shape,
                codes=torch.from_numpy(codes).reshape(entry.shape),
                axis=entry.axis,
                format=entry.format,
                **parts,
            )
        except ValueError as problem:
            raise TerseFileError(f"{entry.name!r}: {problem}") from None

    def _decode(self, index: int) -> Codes:
        """The codes, or the bytes of the arrays, of one group."""
        group = self.contents.group(index)
        data = self._sections.read(f"g{index}")
        # Before decoding: a flipped bit would give plausible but wrong weights.
        told = self.directory.groups[index].crc32
        if told is not None and zlib.crc32(data) != told:
            raise TerseFileError(
                f"group {index} is damaged: its checksum does not match"
            )
        codec = self.directory.groups[index].codec
        if isinstance(group, CodeGroup):
            out = np.empty(group.elements, np.uint8)
            decode_group(codec, data, group.boxes, group.levels, out)
            return out
        dtype = DTYPES[group.dtype]
        return decode_arrays(
            codec, data, group.arrays, dtype.itemsize, is_float=dtype.is_floating_point
        )

    def _allow(self, size_bytes: int, what: str) -> None:
        if size_bytes > self._max_decoded_bytes:
            raise TerseFileError(
                f"{what} decodes to {size_bytes} bytes, max_decoded_bytes allows "
                f"{self._max_decoded_bytes}; allow more if you trust the file"
            )


@contextlib.contextmanager
def _naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Every complaint about a file names it."""
    try:
        yield
    except TerseFileError as problem:
        raise TerseFileError(f"{os.fspath(path)}: {problem}") from None
    except ValueError as problem:
        raise ValueError(f"{os.fspath(path)}: {problem}") from None


@contextlib.contextmanager
def _the_files_fault() -> Iterator[None]:
    try:
        yield
    except ValueError as problem:
        raise TerseFileError(str(problem)) from None


def _as(entry: Entry, held: CompressedTensor | Tensor) -> CompressedTensor | Tensor:
    """The tensor of an entry from the one that holds its content."""
    if entry.same is None:
        return held
    return seen(held, entry.shape, turned=entry.same.turned)


def _copy(tensor: CompressedTensor | Tensor) -> CompressedTensor | Tensor:
    if isinstance(tensor, CompressedTensor):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _array(raw: Codes, stored: Stored, name: str) -> Tensor:
    # A torch.bool that holds any other byte is undefined behaviour.
    if stored.dtype == "BOOL" and raw.size and int(raw.max()) > 1:
        raise TerseFileError(f"{name!r} has a truth value other than 0 and 1")
    if raw.size == 0:
        return torch.empty(stored.shape, dtype=DTYPES[stored.given])
    return (
        torch.from_numpy(raw)
        .view(DTYPES[stored.dtype])
        .reshape(stored.shape)
        .to(DTYPES[stored.given])
    )


def _check_checksums(directory: Directory, sections: Sections) -> None:
    """Only a small file has one checksum for all, and needs none for each group."""
    for index, group in enumerate(directory.groups):
        if group.crc32 is None and not sections.is_small:
            raise TerseFileError(f"group {index} has no checksum")


def _check_version(version: str) -> None:
    # Minor versions only add codecs and keys, each of which names itself if it is
    # unknown.
    if version.partition(".")[0] != VERSION.partition(".")[0]:
        raise TerseFileError(
            f"the file has format version {version}, this tersify reads {VERSION}; upgrade tersify"
        )
