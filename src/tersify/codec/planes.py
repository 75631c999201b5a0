"""Groups of arrays: sign, exponent and mantissa lie apart, and each plane is coded by what suits it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from tersify.codec.codes import THOROUGH_BYTES, Meaning, decode_codes, encode_codes
from tersify.codec.errors import TerseFileError
from tersify.codec.layout import Box, boxes_of_arrays
from tersify.codec.native import Codes

METHODS = ("packed", "rans", "zstd")


def plane_levels(width: int, *, is_float: bool) -> list[int]:
    """The alphabets of the planes of elements of `width` bytes, most significant first."""
    return [2, *[256] * (width - 1), 128] if is_float else [256] * width


def encode_planes(data: bytes, arrays: Sequence[tuple[str, int]], width: int, *, is_float: bool) -> bytes:
    """`data` holds the arrays, given as (kind, elements), one after the other."""
    boxes = boxes_of_arrays(arrays)
    out = []
    for levels, plane in zip(
        plane_levels(width, is_float=is_float), _split(data, width, is_float=is_float), strict=True
    ):
        method, coded = _encode_plane(plane, boxes, levels)
        out.append(struct.pack("<BI", METHODS.index(method), len(coded)) + coded)
    return b"".join(out)


def decode_planes(data: bytes, arrays: Sequence[tuple[str, int]], width: int, *, is_float: bool) -> Codes:
    """The bytes of all arrays; every length is checked before it is believed."""
    boxes = boxes_of_arrays(arrays)
    count = sum(elements for _, elements in arrays)
    unsigned = np.dtype(f"<u{width}")
    joined = np.zeros(count, unsigned)
    at = 0
    shift = 8 * width
    for levels in plane_levels(width, is_float=is_float):
        if len(data) < at + 5:
            raise TerseFileError("a group of arrays ends inside a plane's header")
        method, size = struct.unpack_from("<BI", data, at)
        coded = data[at + 5 : at + 5 + size]
        if len(coded) != size or method >= len(METHODS):
            raise TerseFileError(f"a plane claims method {method} and {size} bytes, {len(coded)} are there")
        at += 5 + size
        plane = np.empty(count, np.uint8)
        decode_codes(METHODS[method], coded, boxes, levels, plane)
        shift -= levels.bit_length() - 1
        joined |= plane.astype(unsigned) << unsigned.type(shift)
    if at != len(data):
        raise TerseFileError(f"a group of arrays has {len(data) - at} bytes too many")
    return joined.view(np.uint8)


def _split(data: bytes, width: int, *, is_float: bool) -> list[Codes]:
    elements = np.frombuffer(data, f"<u{width}")
    shift = 8 * width
    planes = []
    for levels in plane_levels(width, is_float=is_float):
        shift -= levels.bit_length() - 1
        planes.append(((elements >> elements.dtype.type(shift)) & elements.dtype.type(levels - 1)).astype(np.uint8))
    return planes


def _encode_plane(plane: Codes, boxes: Sequence[Box], levels: int) -> tuple[str, bytes]:
    meaning = Meaning(
        activity=np.zeros((len(boxes), levels), np.uint8),
        order=np.arange(levels, dtype=np.uint8),
        offsets=_offsets(plane, boxes),
    )
    return encode_codes(plane, boxes, levels, meaning, worth_coding=_worth_coding(plane, levels))


def _worth_coding(plane: Codes, levels: int) -> bool:
    """Whether a large plane is not just noise, as the low bits of a mantissa are; small ones are simply tried."""
    if plane.size <= THOROUGH_BYTES:
        return True
    shares = np.bincount(plane, minlength=levels) / plane.size
    entropy = -(shares * np.log2(np.maximum(shares, 1e-12))).sum()
    return bool(entropy < 0.99 * (levels.bit_length() - 1))


def _offsets(plane: Codes, boxes: Sequence[Box]) -> Codes:
    """Boxes with about the same mean share statistics: exponents of one kind lie close together."""
    ends = np.cumsum([box.elements for box in boxes])
    sums = np.add.reduceat(plane.astype(np.int64), np.concatenate([[0], ends[:-1]]))
    means = (sums * 256) // np.array([box.elements for box in boxes])
    spread = int(means.max() - means.min())
    if spread == 0:
        return np.full(len(boxes), 8, np.uint8)
    return ((means - means.min()) * 15 // spread).astype(np.uint8)

