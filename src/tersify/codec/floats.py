"""Dense arrays of a group: split into byte planes, each plane packed by zstd."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import zstandard

from tersify.codec.errors import TerseFileError

Bytes = npt.NDArray[np.uint8]


def encode_planes(runs: list[tuple[int, bytes]]) -> bytes:
    """`runs` are (item size, little-endian bytes); the planes of equal item sizes are pooled."""
    packed = [zstandard.ZstdCompressor(level=19).compress(plane) for plane in _split(runs)]
    return b"".join(struct.pack("<I", len(each)) + each for each in packed)


def decode_planes(data: bytes, sizes: list[tuple[int, int]]) -> list[bytes]:
    """The runs of `encode_planes`, given their (item size, byte count); checks every length first."""
    planes: dict[int, list[Bytes]] = {}
    at = 0
    for width in sorted({item for item, _ in sizes}):
        count = sum(total for item, total in sizes if item == width) // width
        planes[width] = []
        for _ in range(width):
            plane, at = _take(data, at, count)
            planes[width].append(plane)
    if at != len(data):
        raise TerseFileError(f"a float group has {len(data) - at} bytes too many")
    joined = {width: np.stack(parts, axis=1).reshape(-1) if parts else parts for width, parts in planes.items()}
    used = dict.fromkeys(joined, 0)
    runs = []
    for width, total in sizes:
        runs.append(joined[width][used[width] : used[width] + total].tobytes())
        used[width] += total
    return runs


def _split(runs: list[tuple[int, bytes]]) -> list[bytes]:
    planes = []
    for width in sorted({item for item, _ in runs}):
        joined = np.frombuffer(b"".join(data for item, data in runs if item == width), np.uint8)
        planes += [joined[k::width].tobytes() for k in range(width)]
    return planes


def _take(data: bytes, at: int, count: int) -> tuple[Bytes, int]:
    if len(data) < at + 4:
        raise TerseFileError("a float group ends inside a length")
    (size,) = struct.unpack_from("<I", data, at)
    frame = data[at + 4 : at + 4 + size]
    if len(frame) != size:
        raise TerseFileError(f"a plane claims {size} bytes, {len(frame)} are there")
    try:
        if zstandard.frame_content_size(frame) != count:
            raise TerseFileError(f"a plane must hold {count} bytes")
        plane = zstandard.ZstdDecompressor().decompress(frame, max_output_size=count, allow_extra_data=False)
    except zstandard.ZstdError as problem:
        raise TerseFileError(f"a plane cannot be unpacked: {problem}") from None
    if len(plane) != count:
        raise TerseFileError(f"a plane must hold {count} bytes, it holds {len(plane)}")
    return np.frombuffer(plane, np.uint8), at + 4 + size
