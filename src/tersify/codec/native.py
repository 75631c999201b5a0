"""The compiled coders, or one clear warning and the reference decoder where they are missing."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Sequence
from types import ModuleType

import numpy as np
import numpy.typing as npt

from tersify.codec import reference, reference_levels
from tersify.codec.errors import TerseFileError
from tersify.codec.layout import Box

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
    codes: Codes, boxes: Sequence[Box], levels: int, activity: Codes, order: Codes, offsets: Codes
) -> bytes | None:
    """The stream of docs/format.md, section 6; None where the extension is missing."""
    native = extension()
    if native is None:
        return None
    return native.encode_codes(codes, _sizes(boxes), levels, activity, order, offsets)


def decode_rans(data: bytes, boxes: Sequence[Box], levels: int, out: Codes) -> None:
    """Decode into `out`, which has exactly one byte per code of the boxes."""
    native = extension()
    if native is None:
        out[:] = np.frombuffer(reference.decode_rans(data, [tuple(box) for box in boxes], levels), np.uint8)
        return
    try:
        native.decode_codes(data, _sizes(boxes), levels, out)
    except native.Malformed as problem:
        raise TerseFileError(f"a damaged stream: {problem}") from None


def find_levels(
    data: Codes, rows: int, limit: int, codes: Codes
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """The bits of the values of each row, how often each occurs, how many a row has; None where one has over `limit`.

    `codes` gets the place of each element's value among those of its row.
    """
    width = data.size // codes.size
    native = extension()
    if native is None:
        return reference_levels.find_levels(data.view(f"<u{width}").reshape(rows, -1), limit, codes)
    found = native.find_levels(data, width, rows, limit, codes)
    if found is None:
        return None
    patterns, counts, per_row = found
    return np.array(patterns, np.uint64), np.array(counts, np.int64), np.array(per_row, np.int64)


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
    """Exchange codes by their `frequent` levels, and each mark (one code beyond these) by the next level `aside`."""
    native = extension()
    if native is None:
        marked = codes == len(frequent)
        codes[~marked] = frequent[codes[~marked]]
        codes[marked] = aside
    else:
        native.merge_split(codes, frequent, aside)


def _sizes(boxes: Sequence[Box]) -> npt.NDArray[np.int64]:
    return np.array(boxes, np.int64).reshape(-1, 4)
