"""Broken `.terse` files made from good ones, in every layer: bytes, header, directory,
groups.

Changes inside a layer repair the layers around it (offsets, checksums), so that they
reach the code they are meant for.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from typing import Any

import zstandard

from tersify.codec.small import DICTIONARY, SMALL, joined, spans_of

LIES = (
    0,
    1,
    -1,
    2,
    3,
    7,
    255,
    256,
    4095,
    65536,
    1 << 22,
    (1 << 22) + 1,
    1 << 31,
    1 << 47,
    1 << 63,
    1 << 70,
    0.5,
    None,
    "",
    [],
    {},
    True,
)


def unpack(file: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The metadata and the sections of a good file."""
    (size,) = struct.unpack_from("<Q", file)
    header = json.loads(file[8 : 8 + size])
    data = file[8 + size :]
    metadata = header.pop("__metadata__")
    spans = {name: entry["data_offsets"] for name, entry in header.items()}
    if SMALL in spans:
        spans = {name: [*span] for name, span in spans_of(data).items()}
    return metadata, {name: data[begin:end] for name, (begin, end) in spans.items()}


def pack(
    metadata: dict[str, Any], sections: dict[str, bytes], *, small: bool = False
) -> bytes:
    sections = {SMALL: joined(sections)} if small else sections
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, data in sections.items():
        header[name] = {
            "dtype": "U8",
            "shape": [len(data)],
            "data_offsets": [end, end + len(data)],
        }
        end += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(sections.values())


def directory_of(sections: dict[str, bytes]) -> dict[str, Any]:
    known = zstandard.ZstdCompressionDict(
        DICTIONARY, dict_type=zstandard.DICT_TYPE_RAWCONTENT
    )
    unzip = zstandard.ZstdDecompressor(dict_data=known).decompress
    return json.loads(unzip(sections["directory"]))


def with_directory(
    sections: dict[str, bytes], directory: dict[str, Any]
) -> dict[str, bytes]:
    packed = zstandard.ZstdCompressor(level=1, write_checksum=True).compress(
        json.dumps(directory).encode()
    )
    return sections | {"directory": packed}


def with_group(sections: dict[str, bytes], name: str, data: bytes) -> dict[str, bytes]:
    """The group replaced, and its checksum in the directory made right again."""
    directory = directory_of(sections)
    directory["groups"][int(name[1:])][1:] = [zlib.crc32(data)]
    return with_directory(sections | {name: data}, directory)


def mangle(data: bytes, rng: random.Random) -> bytes:
    """Flips, cuts, splices, insertions and lying numbers at random places."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        if not made:
            return bytes(made)
        at = (
            rng.randrange(len(made))
            if rng.random() < 0.7
            else rng.randrange(min(16, len(made)))
        )
        kind = rng.randrange(7)
        if kind == 0:
            made[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            made[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 2:
            del made[at:]
        elif kind == 3:
            other = rng.randrange(len(made))
            length = rng.randrange(1, 32)
            made[at : at + length] = made[other : other + length]
        elif kind == 4:
            made[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 5:
            del made[at : at + rng.randrange(1, 9)]
        else:
            made[at : at + 4] = struct.pack(
                "<I", rng.choice((0, 1, len(made), len(made) + 1, 1 << 31, 0xFFFFFFFF))
            )
    return bytes(made)


def lie(value: Any, rng: random.Random) -> Any:
    """A JSON value with one thing in it changed, removed, doubled or replaced."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        made = dict(value)
        action = rng.random()
        if action < 0.1:
            del made[key]
        elif action < 0.15:
            made["unknown"] = rng.choice(LIES)
        else:
            made[key] = lie(value[key], rng)
        return made
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        action = rng.random()
        if action < 0.1:
            return value[:at] + value[at + 1 :]
        if action < 0.2:
            return [*value[:at], value[at], *value[at:]]
        if action < 0.25:
            return rng.sample(value, len(value))
        return [*value[:at], lie(value[at], rng), *value[at + 1 :]]
    if type(value) is int and rng.random() < 0.5:
        return value + rng.choice((-1, 1, 2, 8, -8))
    if isinstance(value, str) and value and rng.random() < 0.5:
        return rng.choice(
            (
                "F64",
                "F16",
                "BOOL",
                "I8",
                "rans",
                "packed",
                "planes",
                "lzma",
                value[:-1],
                value * 2,
            )
        )
    return rng.choice(LIES)


def mutate(file: bytes, rng: random.Random) -> tuple[bytes, bool]:
    """A broken file, and whether any change to a weight must have been noticed (no
    checksum was repaired).
    """
    layer = rng.random()
    if layer < 0.3:
        return mangle(file, rng), True
    metadata, sections = unpack(file)
    small = rng.random() < 0.5  # either form, whatever the file had
    if layer < 0.4:
        (size,) = struct.unpack_from("<Q", file)
        text = json.dumps(lie(json.loads(file[8 : 8 + size]), rng)).encode()
        return struct.pack("<Q", len(text)) + text + file[8 + size :], False
    if layer < 0.6:
        changed = with_directory(sections, lie(directory_of(sections), rng))
        return pack(metadata, changed, small=small), False
    groups = [name for name in sections if name != "directory"]
    name = rng.choice(groups)
    data = mangle(sections[name], rng) if layer < 0.95 else sections[rng.choice(groups)]
    return pack(metadata, with_group(sections, name, data), small=small), False
