"""The directory of a `.terse` file: its tensors, its groups, and what else the file
says about itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import zstandard

from tersify.codec.container import parse_json
from tersify.codec.entries import Entry
from tersify.codec.entry_json import entry_from_json, entry_to_json, typed
from tersify.codec.errors import TerseFileError
from tersify.codec.small import DICTIONARY

MAX_DIRECTORY_BYTES = 1 << 24
_KNOWN = zstandard.ZstdCompressionDict(
    DICTIONARY, dict_type=zstandard.DICT_TYPE_RAWCONTENT
)


@dataclass(frozen=True, kw_only=True)
class Group:
    codec: str
    crc32: int | None = None  # none in a small file, which has one for all of it


@dataclass(frozen=True, kw_only=True)
class Directory:
    entries: list[Entry]
    groups: list[Group]
    aliases: dict[str, str]
    recipe: str | None
    metadata: dict[str, Any]
    provenance: dict[str, Any]


def pack_directory(directory: Directory, *, small: bool = False) -> bytes:
    """One zstd frame; that of a small file refers to text that readers know."""
    plain: dict[str, Any] = {
        "tensors": list(map(entry_to_json, directory.entries)),
        "groups": [
            [group.codec] if small else [group.codec, group.crc32]
            for group in directory.groups
        ],
        "provenance": directory.provenance,
    }
    for key in ("aliases", "recipe", "metadata"):
        if getattr(directory, key):
            plain[key] = getattr(directory, key)
    try:
        text = json.dumps(
            plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        ).encode()
    except (TypeError, ValueError) as problem:
        raise ValueError(
            f"metadata must be plain JSON (text, finite numbers, lists, mappings): {problem}"
        ) from None
    # json turns tuples into lists and integer keys into text without a word: what is
    # loaded would differ from what was saved.
    if parse_json(text, "directory") != plain:
        raise ValueError(
            "metadata must survive JSON: keys that are text, lists instead of tuples"
        )
    if len(text) > MAX_DIRECTORY_BYTES:
        raise ValueError(
            f"names and metadata take {len(text)} bytes, a .terse file allows {MAX_DIRECTORY_BYTES}"
        )
    known = _KNOWN if small else None
    return zstandard.ZstdCompressor(
        level=19, write_checksum=not small, dict_data=known
    ).compress(text)


def unpack_directory(data: bytes, *, max_bytes: int = MAX_DIRECTORY_BYTES) -> Directory:
    """The directory of a file, which may be anybody's: all that it says is checked."""
    plain = parse_json(_unzip(data, max_bytes), "directory")
    groups = list(map(_group, typed(plain.get("groups"), list, "groups")))
    entries = [
        entry_from_json(item, len(groups))
        for item in typed(plain.get("tensors"), list, "tensors")
    ]
    names = {entry.name: entry for entry in entries}
    # A later tensor would silently replace the earlier one.
    if len(names) != len(entries):
        raise TerseFileError("two tensors have the same name")
    _check_equal_tensors(names)
    aliases = typed(plain.get("aliases", {}), dict, "aliases")
    for alias, name in aliases.items():
        if not isinstance(name, str) or name not in names or alias in names:
            raise TerseFileError(
                f"alias {alias!r} → {name!r} must map a new name to a tensor that is there"
            )
    recipe = plain.get("recipe")
    return Directory(
        entries=entries,
        groups=groups,
        aliases=aliases,
        recipe=None if recipe is None else typed(recipe, str, "the recipe"),
        metadata=typed(plain.get("metadata", {}), dict, "metadata"),
        provenance=typed(plain.get("provenance", {}), dict, "provenance"),
    )


def _check_equal_tensors(entries: Mapping[str, Entry]) -> None:
    """A tensor that equals another names one that is stored itself: a chain of names
    could go in a circle.
    """
    for entry in entries.values():
        if entry.same is None:
            continue
        other = entries.get(entry.same.name)
        fits = (
            other is not None
            and other.same is None
            and math.prod(other.shape) == math.prod(entry.shape)
            and not (entry.same.turned and len(entry.shape) != 2)
        )
        if not fits:
            raise TerseFileError(
                f"{entry.name!r} must have the content of a tensor that is there and fits its shape, "
                f"got {entry.same.name!r}"
            )


def _unzip(data: bytes, max_bytes: int) -> bytes:
    try:
        size = zstandard.frame_content_size(data)
        # Checked before the memory is taken; −1 means that the frame does not say its
        # size.
        if not 0 <= size <= min(max_bytes, MAX_DIRECTORY_BYTES):
            raise TerseFileError(
                f"the directory claims {size} bytes, {min(max_bytes, MAX_DIRECTORY_BYTES)} are allowed"
            )
        # A frame that does not refer to the text before it is read as if it were not there.
        return zstandard.ZstdDecompressor(dict_data=_KNOWN).decompress(
            data, max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError as problem:
        raise TerseFileError(f"the directory cannot be unpacked: {problem}") from None


def _group(item: Any) -> Group:
    listed = typed(item, list, "a group")
    if not listed:
        raise TerseFileError("a group is [codec, checksum, …], got nothing")
    return Group(
        codec=typed(listed[0], str, "a codec"),
        crc32=typed(listed[1], int, "a checksum") if len(listed) > 1 else None,
    )
