"""The outermost layer of a `.terse` file: a safetensors file of byte sections, written
atomically.
"""

from __future__ import annotations

import json
import os
import struct
import weakref
from collections.abc import Mapping
from typing import Any

from tersify.codec.atomic import replacing
from tersify.codec.errors import TerseFileError
from tersify.codec.small import MAX_SMALL_BYTES, SMALL, spans_of
from tersify.regular import open_regular

MAX_HEADER_BYTES = 1 << 24
VERSION_KEY = "terse"


def write_sections(
    path: str | os.PathLike[str], sections: Mapping[str, bytes], version: str
) -> int:
    """Write the sections in the order given, at once; returns the size of the file."""
    with replacing(path) as file:
        file.write(header_of(sections, version))
        for data in sections.values():
            file.write(data)
        return file.tell()


def size_of_sections(sections: Mapping[str, bytes], version: str) -> int:
    """The bytes of the file that `write_sections` writes."""
    return len(header_of(sections, version)) + sum(map(len, sections.values()))


def header_of(sections: Mapping[str, bytes], version: str) -> bytes:
    """What comes before the sections in a file."""
    header: dict[str, Any] = {"__metadata__": {VERSION_KEY: version}}
    end = 0
    for name, data in sections.items():
        header[name] = {
            "dtype": "U8",
            "shape": [len(data)],
            "data_offsets": [end, end + len(data)],
        }
        end += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    # The data begins at a multiple of 8 bytes, as safetensors wants it. Nothing in a
    # small file is mapped into memory as it lies.
    if SMALL not in sections:
        text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


class Sections:
    """The sections of an open file, read one at a time; every offset is checked before
    any read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # The descriptor stays open, so that a file replaced in the meantime cannot mix
        # with the old one.
        self._file = open_regular(path)
        weakref.finalize(self, os.close, self._file)
        self.file_bytes = os.fstat(self._file).st_size
        self._spans, self.version, self._data_start = self._read_header()
        # Before anything is read: `read` looks up both.
        self._parts: dict[str, tuple[int, int]] = {}
        self._parts = self._parts_of_small()

    def names(self) -> list[str]:
        """In the order in which they lie."""
        return sorted(self._spans, key=lambda name: self._spans[name])

    @property
    def is_small(self) -> bool:
        """Whether the parts lie in one section, with one checksum."""
        return SMALL in self._spans

    def size_bytes(self, name: str) -> int:
        begin, end = self._span(name)
        return end - begin

    def read(self, name: str) -> bytes:
        begin, end = self._span(name)
        return self._read_at(self._data_start + begin, end - begin)

    def _span(self, name: str) -> tuple[int, int]:
        found = self._spans.get(name) or self._parts.get(name)
        if found is None:
            raise TerseFileError(f"the file has no section {name!r}")
        return found

    def _parts_of_small(self) -> dict[str, tuple[int, int]]:
        """The directory and the groups of a small file, which lie in one section."""
        if SMALL not in self._spans:
            return {}
        begin, end = self._spans[SMALL]
        if end - begin > MAX_SMALL_BYTES:
            raise TerseFileError(
                f"a section {SMALL!r} has at most {MAX_SMALL_BYTES} bytes, got {end - begin}"
            )
        inside = spans_of(self.read(SMALL))
        # Two directories would be two networks.
        for name in inside.keys() & self._spans.keys():
            raise TerseFileError(
                f"the section {SMALL!r} holds {name!r}, and there must be no {name!r} beside it"
            )
        return {name: (begin + a, begin + b) for name, (a, b) in inside.items()}

    def _read_at(self, offset: int, count: int) -> bytes:
        pieces = []
        # pread may return less than was asked for.
        while count > 0:
            piece = os.pread(self._file, count, offset)
            if not piece:
                raise TerseFileError(f"the file ends {count} bytes too early")
            pieces.append(piece)
            offset += len(piece)
            count -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_header(self) -> tuple[dict[str, tuple[int, int]], str, int]:
        if self.file_bytes < 8:
            raise TerseFileError(
                f"a .terse file has at least 8 bytes, got {self.file_bytes}"
            )
        (header_bytes,) = struct.unpack("<Q", self._read_at(0, 8))
        # Before the header is read: eight hostile bytes could ask for any amount of
        # memory.
        if header_bytes > min(MAX_HEADER_BYTES, self.file_bytes - 8):
            raise TerseFileError(
                f"no .terse file, or one cut short: its first 8 bytes claim a header of {header_bytes:,} bytes, and it "
                f"has {self.file_bytes:,}"
            )
        header = parse_json(self._read_at(8, header_bytes), "header")
        metadata = header.pop("__metadata__", None)
        if not isinstance(metadata, dict) or not isinstance(
            metadata.get(VERSION_KEY), str
        ):
            raise TerseFileError(
                "not a .terse file: the header's metadata has no 'terse' version"
            )
        spans = {name: _span_of(name, entry) for name, entry in header.items()}
        end = 0
        for name, (begin, stop) in sorted(spans.items(), key=lambda item: item[1]):
            # Sections must follow each other without a gap or an overlap, so no byte is
            # hidden.
            if begin != end:
                raise TerseFileError(
                    f"section {name!r} begins at {begin}, the one before it ends at {end}"
                )
            end = stop
        if 8 + header_bytes + end != self.file_bytes:
            raise TerseFileError(
                f"the sections end at byte {8 + header_bytes + end}, the file at {self.file_bytes}"
            )
        return spans, metadata[VERSION_KEY], 8 + header_bytes


def _span_of(name: str, entry: Any) -> tuple[int, int]:
    """Where a section begins and ends, as safetensors says it of a tensor of bytes."""
    # `type(n)` and not isinstance: true would pass as 1.
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(offsets, list) or list(map(type, offsets)) != [int, int]:
        raise TerseFileError(f"section {name!r} has no pair of offsets")
    begin, end = offsets
    is_bytes = entry.get("dtype") == "U8" and entry.get("shape") == [end - begin]
    if not 0 <= begin <= end or not is_bytes:
        raise TerseFileError(f"section {name!r} is not a run of bytes")
    return begin, end


def parse_json(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object, without the extensions of Python's parser and without duplicate
    keys.
    """
    try:
        parsed = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
        if b"\\u" in data:
            # half a surrogate pair is no text
            json.dumps(parsed, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as problem:
        raise TerseFileError(f"the {what} is not valid JSON: {problem}") from None
    if not isinstance(parsed, dict):
        raise TerseFileError(
            f"the {what} must be a JSON object, got {type(parsed).__name__}"
        )
    return parsed


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Of two equal keys Python's parser keeps the last and other parsers the first: one
    # file would mean two networks.
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key occurs twice")
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
