"""Groups of arrays: as planes, of large arrays in pieces, with their zeros set aside,
or in a zstd frame, as they are or byte by byte.

The smallest is taken.

Exponents drift along a large array, as the rows of an embedding do: pieces have
statistics of their own. A zero has no mantissa, but in a plane its bits lie among those
of others and look like noise. Weights that were multiplied by a mask hold zeros of both
signs, which are kept. Numbers that return, as in rows of few values, are seen whole by
zstd alone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import zstandard

from tersify.codec.codes import (
    Meaning,
    decode_codes,
    encode_codes,
    unzip,
    zipped,
)
from tersify.codec.errors import TerseFileError
from tersify.codec.layout import BLOCK_ELEMENTS, PIECE_ELEMENTS, Box, boxes_of_arrays
from tersify.codec.native import Codes
from tersify.codec.planes import (
    METHODS,
    decode_planes,
    encode_planes,
    has_few_values,
    may_repeat,
)

MIN_ZERO_FRACTION = 1 / 64
SAMPLE = 1 << 16
# what a zstd frame must save: readers of version 1.0 know planes alone
WORTH_BYTES = 64
ALWAYS_BYTES = 1 << 20  # a tenth of a second of zstd's best
SINGLES_BYTES = 1 << 22  # half a second of it
# of larger groups: what tells whether all of it is worth the time
SLICES, SLICE_BYTES, NEAR = 3, 1 << 17, 1.05
OTHER = 2  # the code of what is no zero
Arrays = Sequence[tuple[str, int]]  # kind, elements


def encode_arrays(
    data: Codes, arrays: Arrays, width: int, *, is_float: bool, columns: bool = False
) -> tuple[str, bytes]:
    """The name and the bytes of the smaller coding; `data` holds the arrays one after
    the other. `columns` is tried where it is asked for: it helps in small files alone.
    """
    name = (
        "pieces"
        if any(elements >= 2 * PIECE_ELEMENTS for _, elements in arrays)
        else "planes"
    )
    # The bound that every other coding must beat.
    best = (name, encode_planes(data, _boxes(name, arrays), width, is_float=is_float))
    # A zero of one byte costs a plane no more than a code, so only wider floats gain.
    if is_float and width > 1 and _has_zeros(data.view(f"<u{width}"), width):
        made = _encode_zeros(data, arrays, width)
        if len(made) < len(best[1]):
            best = ("zeros", made)
    if columns and width > 1:
        turned = np.ascontiguousarray(data.reshape(-1, width).T).reshape(-1)
        frame = zipped(turned, len(best[1]))
        best = best if frame is None else ("columns", frame)
    if width == 1 or not may_repeat(data, width):
        return best
    limit = len(best[1]) - WORTH_BYTES
    # Quick tries do not see single values that return, and would say that the thorough
    # one is not worth it.
    thorough = ALWAYS_BYTES
    if has_few_values(data, width):
        thorough = max(SINGLES_BYTES, data.size if _slices_reach(data, limit) else 0)
    frame = zipped(data, limit, thorough_bytes=thorough)
    return best if frame is None else ("zstd", frame)


def _slices_reach(data: Codes, limit: int) -> bool:
    """Whether zstd's best comes near its share of `limit` in slices of a large group."""
    if data.size <= SINGLES_BYTES:
        return False
    best = zstandard.ZstdCompressor(level=19)
    starts = np.linspace(0, data.size - SLICE_BYTES, SLICES).astype(int)
    made = sum(len(best.compress(data[at : at + SLICE_BYTES].data)) for at in starts)
    return made <= NEAR * limit * SLICES * SLICE_BYTES / data.size


def decode_arrays(
    codec: str, data: bytes, arrays: Arrays, width: int, *, is_float: bool
) -> Codes:
    """The bytes of all arrays."""
    if codec in ("planes", "pieces"):
        return decode_planes(data, _boxes(codec, arrays), width, is_float=is_float)
    if codec in ("zstd", "columns"):
        out = np.empty(width * sum(elements for _, elements in arrays), np.uint8)
        unzip(data, out)
        return out if codec == "zstd" else out.reshape(width, -1).T.reshape(-1)
    if codec != "zeros" or not is_float:
        raise TerseFileError(
            f"unknown codec {codec!r} for arrays; a newer tersify may know it"
        )
    # Every length is checked before it is believed, because the file may be anybody's.
    # The header is a method (1 byte) and a length (4 bytes).
    if len(data) < 5:
        raise TerseFileError("a group of arrays with zeros ends inside its header")
    method, length = struct.unpack_from("<BI", data)
    if len(data) < 5 + length or method >= len(METHODS):
        raise TerseFileError(
            f"zeros claim method {method} and {length} bytes, {len(data) - 5} are there"
        )
    codes = np.empty(sum(elements for _, elements in arrays), np.uint8)
    decode_codes(
        METHODS[method], data[5 : 5 + length], boxes_of_arrays(arrays), 3, codes
    )
    # Code 0 is 0.0, code 1 is −0.0; code 2 is filled in from the planes below.
    filled = np.where(codes == 1, _sign(width), _sign(width).dtype.type(0))
    others = _others(codes, arrays)
    if others:
        rest = decode_planes(
            data[5 + length :], _boxes("pieces", others), width, is_float=True
        )
        filled[codes == OTHER] = rest.view(f"<u{width}")
    # Bytes that no tensor needs could hide anything, and two files would hold the same
    # network.
    elif len(data) != 5 + length:
        raise TerseFileError(
            "a group of arrays that are all zero has bytes behind its zeros"
        )
    return filled.view(np.uint8)


def _encode_zeros(data: Codes, arrays: Arrays, width: int) -> bytes:
    elements = data.view(f"<u{width}")
    codes = np.where(
        elements == 0, 0, np.where(elements == _sign(width), 1, OTHER)
    ).astype(np.uint8)
    boxes = boxes_of_arrays(arrays)
    meaning = Meaning(
        # Zeros of either sign are idle and other numbers active: the coder's density
        # context tells sparse rows from dense ones by this.
        activity=np.tile(np.array([0, 0, 255], np.uint8), (len(boxes), 1)),
        order=np.arange(3, dtype=np.uint8),
    )
    method, coded = encode_codes(codes, boxes, 3, meaning)
    head = struct.pack("<BI", METHODS.index(method), len(coded)) + coded
    others = _others(codes, arrays)
    if not others:
        return head
    rest = elements[codes == OTHER].view(np.uint8)
    return head + encode_planes(rest, _boxes("pieces", others), width, is_float=True)


def _boxes(codec: str, arrays: Arrays) -> list[Box]:
    return boxes_of_arrays(
        arrays, piece_elements=PIECE_ELEMENTS if codec == "pieces" else BLOCK_ELEMENTS
    )


def _others(codes: Codes, arrays: Arrays) -> list[tuple[str, int]]:
    """The arrays without their zeros; those that hold nothing else are left out."""
    ends = np.cumsum([elements for _, elements in arrays])
    # Arrays without other numbers vanish from the boxes, at the encoder and the decoder
    # alike: both derive it from the same codes.
    counts = [
        int(np.count_nonzero(part == OTHER)) for part in np.split(codes, ends[:-1])
    ]
    return [
        (kind, count) for (kind, _), count in zip(arrays, counts, strict=True) if count
    ]


def _has_zeros(elements: npt.NDArray[np.unsignedinteger], width: int) -> bool:
    # Masked with ~sign, both zeros are 0.
    sample = elements[:: max(1, elements.size // SAMPLE)]
    return int(np.count_nonzero((sample & ~_sign(width)) == 0)) >= max(
        1, MIN_ZERO_FRACTION * sample.size
    )


def _sign(width: int) -> np.unsignedinteger:
    """The bits of −0.0."""
    return np.dtype(f"<u{width}").type(1 << (8 * width - 1))
