"""The compiled coders, or one clear warning and the reference decoder where they are
missing.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Sequence
from types import ModuleType

import numpy as np
import numpy.typing as npt
import torch

from tersify.codec import reference, reference_levels, reference_planes
from tersify.codec.errors import TerseFileError
from tersify.codec.layout import Box
from tersify.tensor import bits_for, bytes_for, pack_bits, unpack_bits

Codes = npt.NDArray[np.uint8]


@functools.cache
def extension() -> ModuleType | None:
    try:
        _codec = importlib.import_module("tersify._codec")
    except ImportError:
        warnings.warn(
            "tersify._codec is not built: .terse files are read slowly, in pure Python, and written larger; "
            "`pip install tersify` builds it",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return _codec


def encode_rans(
    codes: Codes, boxes: Sequence[Box], levels: int, activity: Codes, order: Codes
) -> bytes | None:
    """The stream of docs/reference/format.md, section 6; None where the extension is
    missing.

    It is read back before it is handed out: a stream that does not give the same codes
    again is none.
    """
    native = extension()
    if native is None:
        return None
    coded: bytes = native.encode_codes(codes, _sizes(boxes), levels, activity, order)
    again = np.empty_like(codes)
    try:
        # A wrong file is far worse than the time of one more decoding.
        native.decode_codes(coded, _sizes(boxes), levels, again)
    except native.Malformed:
        return None
    return coded if np.array_equal(again, codes) else None


def decode_rans(data: bytes, boxes: Sequence[Box], levels: int, out: Codes) -> None:
    """Decode into `out`, which has exactly one byte per code of the boxes."""
    native = extension()
    if native is None:
        out[:] = np.frombuffer(
            reference.decode_rans(data, list(map(tuple, boxes)), levels), np.uint8
        )
        return
    try:
        native.decode_codes(data, _sizes(boxes), levels, out)
    except native.Malformed as problem:
        raise TerseFileError(f"a damaged stream: {problem}") from None


def pack_codes(codes: Codes, bits: int) -> bytes:
    """Codes of `bits` bits one after the other, least significant bit first."""
    native = extension()
    if native is None:
        return pack_bits(torch.from_numpy(codes), bits).numpy().tobytes()
    out = np.empty(bytes_for(codes.size, bits), np.uint8)
    native.pack_codes(codes, bits, out)
    return out.tobytes()


def unpack_codes(data: bytes | Codes, levels: int, out: Codes) -> None:
    """Packed codes into `out`; the length must be exact and the last byte filled up
    with zero bits.
    """
    bits = bits_for(levels)
    if len(data) != bytes_for(out.size, bits):
        raise TerseFileError(
            f"{out.size} codes of {bits} bits do not fill {len(data)} bytes"
        )
    used = out.size * bits % 8
    # One network, one file: stray bits would make two files of it, and could carry
    # hidden data.
    if used and data[-1] >> used:
        raise TerseFileError(
            f"the last byte of {out.size} codes of {bits} bits is not filled up with zero bits"
        )
    raw = np.frombuffer(data, np.uint8)
    native = extension()
    if native is None:
        out[:] = unpack_bits(torch.from_numpy(raw.copy()), bits, out.size).numpy()
    else:
        native.unpack_codes(raw, bits, out)


def split_planes(
    data: Codes, width: int, levels: Sequence[int]
) -> list[tuple[Codes, npt.NDArray[np.int64]]]:
    """Each plane with one byte per element, and how often each of its codes occurs in a
    sample.
    """
    native = extension()
    if native is None:
        planes = reference_planes.split_planes(data.view(f"<u{width}"), levels)
        return [
            (plane, np.bincount(plane, minlength=size))
            for plane, size in zip(planes, levels, strict=True)
        ]
    planes = [np.empty(data.size // width, np.uint8) for _ in levels]
    # A float has one plane more than bytes (its sign bit apart), which is how C++ knows
    # it.
    counts = native.split_planes(data, width, len(levels) > width, planes)
    return [
        (plane, np.array(each, np.int64))
        for plane, each in zip(planes, counts, strict=True)
    ]


def join_planes(
    coded: Sequence[tuple[str, Codes]],
    boxes: Sequence[Box],
    levels: Sequence[int],
    out: Codes,
) -> None:
    """Decode planes (`packed`, `rans`, or `codes` as they are) and put their elements
    together in `out`.
    """
    count = sum(box.elements for box in boxes)
    width = out.size // count if count else 1
    native = extension()
    if native is None:
        # Without the extension: the same planes by the reference decoder, one after the
        # other.
        planes = []
        for (method, data), size in zip(coded, levels, strict=True):
            plane = np.empty(count, np.uint8)
            if method == "rans":
                decode_rans(data.tobytes(), boxes, size, plane)
            elif method == "packed":
                unpack_codes(data, size, plane)
            else:
                plane = data
            planes.append(plane)
        reference_planes.join_planes(planes, levels, out.view(f"<u{width}"))
        return
    methods = [("packed", "rans", "codes").index(method) for method, _ in coded]
    try:
        native.join_planes(
            methods,
            [data for _, data in coded],
            _sizes(boxes),
            width,
            len(levels) > width,
            out,
        )
    except native.Malformed as problem:
        raise TerseFileError(f"a damaged plane: {problem}") from None


def find_levels(
    data: Codes, rows: int, limit: int, codes: Codes
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """The bits of the values of each row, how often each occurs, how many a row has;
    None where one has over `limit`.

    `codes` gets the place of each element's value among those of its row.
    """
    width = data.size // codes.size
    native = extension()
    if native is None:
        return reference_levels.find_levels(
            data.view(f"<u{width}").reshape(rows, -1), limit, codes
        )
    found = native.find_levels(data, width, rows, limit, codes)
    if found is None:
        return None
    patterns, counts, per_row = found
    return (
        np.array(patterns, np.uint64),
        np.array(counts, np.int64),
        np.array(per_row, np.int64),
    )


def relabel(codes: Codes, table: Codes) -> None:
    """Exchange each code by the entry of its row in `table`, 256 entries a row."""
    native = extension()
    if native is None:
        rows = codes.reshape(len(table), -1)
        for row, entries in zip(rows, table, strict=True):
            row[:] = entries[row]
    else:
        native.relabel(codes, table)


def merge_split(codes: Codes, frequent: Codes, aside: Codes) -> None:
    """Exchange codes by their `frequent` levels, and each mark (one code beyond these)
    by the next level `aside`.
    """
    native = extension()
    if native is None:
        marked = codes == len(frequent)
        codes[~marked] = frequent[codes[~marked]]
        codes[marked] = aside
    else:
        native.merge_split(codes, frequent, aside)


def _sizes(boxes: Sequence[Box]) -> npt.NDArray[np.int64]:
    return np.array(boxes, np.int64).reshape(-1, 4)
