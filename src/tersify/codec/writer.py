"""`save`: a packed model becomes groups of codes and groups of arrays, and one
directory.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tersify.codec.apart import better_parts
from tersify.codec.container import Sections, size_of_sections, write_sections
from tersify.codec.directory import Directory, Group, pack_directory
from tersify.codec.entries import Entry
from tersify.codec.open_group import OpenGroup
from tersify.codec.packing import packed_once
from tersify.codec.small import DIRECTORY, MAX_SMALL_BYTES, SMALL, joined
from tersify.codec.stored_groups import Grouping
from tersify.codec.views import Same
from tersify.tensor import CompressedModel, CompressedTensor
from tersify.tensor.inputs import METADATA
from tersify.tensor.model import GRAPH, check_names

VERSION, FOURTH_VERSION, THIRD_VERSION, SECOND_VERSION = "1.4", "1.3", "1.2", "1.1"
FIRST_VERSION, FIRST_CODECS = "1.0", {"packed", "rans", "planes"}
PLAN = "plan"  # the section of the lowered network, which version 1.2 added
# A file of fewer weights than this takes what version 1.3 added: there, hundred bytes
# count. Others are for older readers, too.
SMALL_ELEMENTS = 1 << 18


def save(
    model: Mapping[str, CompressedTensor | Tensor],
    path: str | os.PathLike[str],
    *,
    floats: Literal["as-is", "fp16"] = "as-is",
    network: nn.Module | None = None,
    example: Tensor | Sequence[Tensor] | None = None,
    plan_section: bytes | None = None,
) -> int:
    """The file of `tersify.save`, which describes the arguments; returns its bytes.

    Args:
        plan_section: the lowered network, which goes into the file as it is.
    """
    made = encoded(model, floats=floats, network=network, example=example)
    if plan_section is None:
        return write_sections(path, made.stored, made.version)
    version = max(made.version, THIRD_VERSION)
    return write_sections(path, made.stored | {PLAN: plan_section}, version)


def add_plan(file: Sections, out: str | os.PathLike[str], plan: bytes) -> int:
    """The file with this plan instead of its own, all else as it is."""
    kept = {name: file.read(name) for name in file.names() if name != PLAN}
    version = max(file.version, THIRD_VERSION)
    return write_sections(out, kept | {PLAN: plan}, version)


@dataclass(frozen=True, eq=False)
class Encoded:
    """A file in memory: its directory and groups, and what went into each group."""

    sections: dict[str, bytes]
    small: bool
    version: str
    groups: list[Group]
    # what each was made of, with the levels of its codes or the dtype of its arrays
    contents: list[tuple[int | str, OpenGroup]]

    @property
    def stored(self) -> dict[str, bytes]:
        """The sections that the file has."""
        return {SMALL: joined(self.sections)} if self.small else self.sections

    @property
    def size_bytes(self) -> int:
        return size_of_sections(self.stored, self.version)


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
    packed, same = packed_once(model, half=half)
    if network is not None:
        packed.metadata |= {GRAPH: _graph_of(network, example, packed)}
    small = sum(tensor.numel() for tensor in packed.values()) < SMALL_ELEMENTS
    grouping, entries = _grouped(packed, same, Grouping(half=half, small=small))
    better = better_parts(grouping.groups)
    if len(better) > sum(isinstance(key, int) for key, _ in grouping.groups):
        again = Grouping(half=half, small=small, parts=better)
        grouping, entries = _grouped(packed, same, again)
    sections, groups = grouping.encode()
    directory = Directory(
        entries=entries,
        groups=groups,
        aliases=packed.aliases,
        recipe=packed.recipe,
        metadata=packed.metadata,
        provenance=_provenance(),
    )
    parts = {DIRECTORY: pack_directory(directory, small=small), **sections}
    # Metadata may be of any size: a graph, for instance.
    if small and len(joined(parts)) > MAX_SMALL_BYTES:
        small, parts[DIRECTORY] = False, pack_directory(directory)
    version = _version(directory)
    version = max(version, FOURTH_VERSION) if small else version
    return Encoded(parts, small, version, groups, grouping.groups)


def _grouped(
    packed: CompressedModel, same: Mapping[str, Same], grouping: Grouping
) -> tuple[Grouping, list[Entry]]:
    return grouping, [
        Entry(name=name, shape=tuple(tensor.shape), same=same[name])
        if name in same
        else grouping.add(name, tensor)
        for name, tensor in packed.items()
    ]


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
    codecs = {group.codec for group in directory.groups}
    shapes = {entry.name: entry.shape for entry in directory.entries}
    same = [(e.same, e.shape) for e in directory.entries if e.same is not None]
    # Other shapes of equal tensors came with 1.4.
    if any(other.turned or shapes[other.name] != shape for other, shape in same):
        return VERSION
    # Whole levels came with 1.3.
    if "columns" in codecs or any(e.has_whole_levels for e in directory.entries):
        return FOURTH_VERSION
    # Two scales came with 1.2, and an older reader would take the first for all of it.
    if any(entry.column_scale is not None for entry in directory.entries):
        return THIRD_VERSION
    # References to equal tensors came with 1.1.
    if same:
        return SECOND_VERSION
    return FIRST_VERSION if codecs <= FIRST_CODECS else SECOND_VERSION


def _provenance() -> dict[str, Any]:
    """What wrote the file, and not when: the same network gives the same bytes."""
    return {
        # an import would tie shipping to training
        "tersify": sys.modules["tersify"].__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
