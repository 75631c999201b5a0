"""The directory of a `.terse` file: which tensors there are, and which group holds each part of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import zstandard

from tersify.codec.container import parse_json
from tersify.codec.errors import TerseFileError
from tersify.codec.layout import blocks_of

MAX_DIRECTORY_BYTES = 1 << 28
MAX_DIMENSIONS = 32
MAX_NUMEL = 1 << 48

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A dense array inside a group: its shape, the dtype on disk and the dtype it is given back in."""

    shape: tuple[int, ...]
    dtype: str
    given: str
    group: int

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def stored_bytes(self) -> int:
        return self.numel * DTYPES[self.dtype].itemsize

    @property
    def given_bytes(self) -> int:
        return self.numel * DTYPES[self.given].itemsize


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One tensor: dense (`dense` alone), or `codes` with a codebook or with values."""

    name: str
    shape: tuple[int, ...]
    dense: Stored | None = None
    code_groups: tuple[int, ...] = ()
    codebook: Stored | None = None
    values: Stored | None = None
    scale: Stored | None = None
    axis: int | None = None
    format: Mapping[str, int] = field(default_factory=dict)

    @property
    def levels(self) -> int:
        """Size of the alphabet of the codes."""
        return 2 if self.codebook is None else self.codebook.shape[-1]

    def stored(self) -> list[Stored]:
        return [part for part in (self.dense, self.codebook, self.values, self.scale) if part is not None]

    @property
    def decoded_bytes(self) -> int:
        codes = 0 if self.dense is not None else math.prod(self.shape)
        return codes + sum(part.given_bytes for part in self.stored())


@dataclass(frozen=True, kw_only=True)
class Group:
    codec: str
    crc32: int


@dataclass(frozen=True, kw_only=True)
class Directory:
    entries: list[Entry]
    groups: list[Group]
    aliases: dict[str, str]
    recipe: str | None
    metadata: dict[str, Any]
    provenance: dict[str, Any]


def pack_directory(directory: Directory) -> bytes:
    plain: dict[str, Any] = {
        "tensors": [_entry_to_json(entry) for entry in directory.entries],
        "groups": [[group.codec, group.crc32] for group in directory.groups],
        "provenance": directory.provenance,
    }
    for key in ("aliases", "recipe", "metadata"):
        if getattr(directory, key):
            plain[key] = getattr(directory, key)
    try:
        text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as problem:
        raise ValueError(f"metadata must be plain JSON (text, finite numbers, lists, mappings): {problem}") from None
    if parse_json(text, "directory") != plain:
        raise ValueError("metadata must survive JSON: text keys, lists instead of tuples")
    return zstandard.ZstdCompressor(level=19, write_checksum=True).compress(text)


def unpack_directory(data: bytes) -> Directory:
    plain = parse_json(_unzip(data), "directory")
    groups = [_group(item) for item in _typed(plain.get("groups"), list, "groups")]
    entries = [_entry_from_json(item, len(groups)) for item in _typed(plain.get("tensors"), list, "tensors")]
    names = {entry.name for entry in entries}
    if len(names) != len(entries):
        raise TerseFileError("two tensors have the same name")
    aliases = _typed(plain.get("aliases", {}), dict, "aliases")
    for alias, name in aliases.items():
        if not isinstance(name, str) or name not in names or alias in names:
            raise TerseFileError(f"alias {alias!r} → {name!r} must map a new name to a tensor that is there")
    recipe = plain.get("recipe")
    return Directory(
        entries=entries,
        groups=groups,
        aliases=aliases,
        recipe=None if recipe is None else _typed(recipe, str, "recipe"),
        metadata=_typed(plain.get("metadata", {}), dict, "metadata"),
        provenance=_typed(plain.get("provenance", {}), dict, "provenance"),
    )


def _unzip(data: bytes) -> bytes:
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= MAX_DIRECTORY_BYTES:
            raise TerseFileError(f"the directory claims {size} bytes, at most {MAX_DIRECTORY_BYTES} are allowed")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as problem:
        raise TerseFileError(f"the directory cannot be unpacked: {problem}") from None


def _entry_to_json(entry: Entry) -> dict[str, Any]:
    made: dict[str, Any] = {"n": entry.name, "s": list(entry.shape)}
    if entry.dense is not None:
        return made | {"d": _stored_to_json(entry.dense)}
    made["c"] = list(entry.code_groups)
    if entry.codebook is not None:
        made["b"] = [*_stored_to_json(entry.codebook), entry.levels]
    if entry.values is not None:
        made["v"] = [*_stored_to_json(entry.values), entry.values.numel]
    if entry.scale is not None:
        made["m"] = [*_stored_to_json(entry.scale), *entry.scale.shape]
    if entry.axis is not None:
        made["a"] = entry.axis
    if entry.format:
        made["f"] = dict(entry.format)
    return made


def _stored_to_json(part: Stored) -> list[Any]:
    return [part.dtype, part.given, part.group]


def _entry_from_json(item: Any, groups: int) -> Entry:
    plain = _typed(item, dict, "a tensor")
    name = _typed(plain.get("n"), str, "a tensor's name")
    shape = _shape(plain.get("s"), name)
    if "d" in plain:
        return Entry(name=name, shape=shape, dense=_stored(plain["d"], shape, groups, name))
    code_groups = tuple(_index(g, groups, name) for g in _typed(plain.get("c"), list, f"{name!r} codes"))
    if len(code_groups) != len(blocks_of(shape)):
        raise TerseFileError(f"{name!r} needs {len(blocks_of(shape))} blocks, the directory names {len(code_groups)}")
    axis = plain.get("a")
    if axis is not None and (type(axis) is not int or not 0 <= axis < len(shape)):
        raise TerseFileError(f"{name!r} has axis {axis!r} and {len(shape)} dimensions")
    if ("b" in plain) == ("v" in plain):
        raise TerseFileError(f"{name!r} needs a codebook or values, not both and not neither")
    codebook = values = scale = None
    if "b" in plain:
        reference = _typed(plain["b"], list, f"{name!r} codebook")
        (levels,) = _shape(reference[3:], name, dimensions=1)
        if not 1 <= levels <= 256:
            raise TerseFileError(f"{name!r} has {levels} levels, 1..256 are allowed")
        rows = () if axis is None else (shape[axis],)
        codebook = _stored(reference[:3], (*rows, levels), groups, name)
    else:
        reference = _typed(plain["v"], list, f"{name!r} values")
        values = _stored(reference[:3], _shape(reference[3:], name, dimensions=1), groups, name)
        if values.numel > math.prod(shape):
            raise TerseFileError(f"{name!r} has {values.numel} values for {math.prod(shape)} weights")
    if "m" in plain:
        reference = _typed(plain["m"], list, f"{name!r} scale")
        scale = _stored(reference[:3], _shape(reference[3:], name), groups, name)
        if scale.numel > max(1, math.prod(shape)):
            raise TerseFileError(f"{name!r} has {scale.numel} scales for {math.prod(shape)} weights")
    facts = _typed(plain.get("f", {}), dict, f"{name!r} format")
    if any(type(fact) is not int for fact in facts.values()):
        raise TerseFileError(f"{name!r} has a format with something else than whole numbers")
    return Entry(
        name=name,
        shape=shape,
        code_groups=code_groups,
        codebook=codebook,
        values=values,
        scale=scale,
        axis=axis,
        format=facts,
    )


def _stored(item: Any, shape: tuple[int, ...], groups: int, name: str) -> Stored:
    if not (isinstance(item, list) and len(item) == 3):
        raise TerseFileError(f"{name!r} has a part without dtypes and a group")
    dtype, given, group = item
    for each in (dtype, given):
        if not isinstance(each, str) or each not in DTYPES:
            raise TerseFileError(f"{name!r} has the unknown dtype {each!r}; a newer tersify may know it")
    return Stored(shape=shape, dtype=dtype, given=given, group=_index(group, groups, name))


def _shape(item: Any, name: str, dimensions: int | None = None) -> tuple[int, ...]:
    sizes = _typed(item, list, f"{name!r} shape")
    if len(sizes) > MAX_DIMENSIONS or (dimensions is not None and len(sizes) != dimensions):
        raise TerseFileError(f"{name!r} has a shape of {len(sizes)} dimensions")
    if any(type(n) is not int or not 0 <= n <= MAX_NUMEL for n in sizes):
        raise TerseFileError(f"{name!r} has the impossible shape {sizes}")
    if math.prod(n for n in sizes if n) > MAX_NUMEL:
        raise TerseFileError(f"{name!r} has the impossible shape {sizes}")
    return tuple(sizes)


def _index(item: Any, count: int, name: str) -> int:
    if type(item) is not int or not 0 <= item < count:
        raise TerseFileError(f"{name!r} is in group {item!r}, the file has {count} groups")
    return item


def _group(item: Any) -> Group:
    if not (isinstance(item, list) and len(item) >= 2 and isinstance(item[0], str) and type(item[1]) is int):
        raise TerseFileError(f"a group is [codec, checksum, …], got {item!r}")
    return Group(codec=item[0], crc32=item[1])


def _typed(item: Any, wanted: type, what: str) -> Any:
    if not isinstance(item, wanted):
        raise TerseFileError(f"{what} must be a {wanted.__name__}, got {type(item).__name__}")
    return item
