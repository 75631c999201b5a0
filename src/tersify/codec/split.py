"""Groups of codes, and the codec `split`: rare codes are set aside, so that each part
has a short alphabet.

The entropy coder gives every code that occurs at least 1/4096 of a table. Where one
code takes nearly everything, or many codes are rarer than that, two streams are
smaller: frequent codes and marks, and the codes behind the marks.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from tersify.codec.codes import Meaning, decode_codes, encode_codes
from tersify.codec.errors import TerseFileError
from tersify.codec.layout import Box, flat_box
from tersify.codec.native import Codes, merge_split
from tersify.tensor import bytes_for

METHODS = ("packed", "rans", "zstd", "split")
MAX_DEPTH = 4
WORTH_TRYING = 1.0005  # of the order-0 entropy: what the grain of the tables must cost
GRAIN = 4096


def encode_group(
    codes: Codes,
    boxes: Sequence[Box],
    levels: int,
    meaning: Meaning,
    *,
    depth: int = MAX_DEPTH,
) -> tuple[str, bytes]:
    """The name and the bytes of the smallest coding."""
    best = encode_codes(codes, boxes, levels, meaning)
    if depth == 0 or levels < 3 or codes.size == 0:
        return best
    counts = np.bincount(codes, minlength=levels)
    ideal, grained = _bits(codes, boxes, levels)
    # Both figures ignore context, so only their ratio counts: what a coder loses
    # because no symbol gets less than 1/4096 of a table.
    if grained < ideal * WORTH_TRYING:
        return best
    for rare in _choices(counts):
        made = _encode_split(codes, boxes, levels, meaning, rare, depth)
        if len(made) < len(best[1]):
            best = ("split", made)
    return best


def decode_group(
    codec: str,
    data: bytes,
    boxes: Sequence[Box],
    levels: int,
    out: Codes,
    *,
    depth: int = MAX_DEPTH,
) -> None:
    """Decode into `out`, which has exactly one byte per code of the boxes."""
    if codec != "split":
        decode_codes(codec, data, boxes, levels, out)
        return
    if depth == 0:
        raise TerseFileError(f"codes are split more than {MAX_DEPTH} times")
    at = bytes_for(levels, 1)
    marks = np.unpackbits(np.frombuffer(data[:at], np.uint8), bitorder="little")
    # One bit for each level, rare or not; the rest of the last byte must be zero.
    if len(marks) < levels or marks[levels:].any():
        raise TerseFileError(f"split codes need {levels} marks, then zero bits")
    rare = marks[:levels].astype(bool)
    frequent_levels, rare_levels = (
        np.flatnonzero(~rare).astype(np.uint8),
        np.flatnonzero(rare).astype(np.uint8),
    )
    if not len(frequent_levels) or not len(rare_levels):
        raise TerseFileError("split codes need rare levels and others")
    at = _decode_part(data, at, boxes, len(frequent_levels) + 1, out, depth)
    behind = _boxes_behind(out == len(frequent_levels), boxes)
    aside = np.empty(sum(box.elements for box in behind), np.uint8)
    at = _decode_part(data, at, behind, len(rare_levels), aside, depth)
    if at != len(data):
        raise TerseFileError(f"split codes have {len(data) - at} bytes too many")
    merge_split(out, frequent_levels, rare_levels[aside])


def _encode_split(
    codes: Codes,
    boxes: Sequence[Box],
    levels: int,
    meaning: Meaning,
    rare: np.ndarray,
    depth: int,
) -> bytes:
    # Both alphabets are numbered anew, each from 0 and in the old order.
    frequent = ~rare
    label = np.where(rare, np.cumsum(rare) - 1, np.cumsum(frequent) - 1).astype(
        np.uint8
    )
    mark = int(frequent.sum())
    is_rare = rare[codes]
    main, aside = np.where(is_rare, np.uint8(mark), label[codes]), label[codes[is_rare]]
    kept = np.flatnonzero(frequent)
    behind = meaning.activity[:, rare].astype(np.uint16)
    activity = np.concatenate(
        [meaning.activity[:, kept], behind.mean(1, keepdims=True).astype(np.uint8)], 1
    )
    order = np.concatenate(
        [label[[code for code in meaning.order if frequent[code]]], [mark]]
    ).astype(np.uint8)
    parts = [
        encode_codes(main, boxes, mark + 1, Meaning(activity=activity, order=order)),
        _encode_aside(aside, _boxes_behind(is_rare, boxes), levels - mark, depth - 1),
    ]
    packed = [
        struct.pack("<BI", METHODS.index(codec), len(data)) + data
        for codec, data in parts
    ]
    return np.packbits(rare, bitorder="little").tobytes() + b"".join(packed)


def _encode_aside(
    codes: Codes, boxes: Sequence[Box], levels: int, depth: int
) -> tuple[str, bytes]:
    order = np.arange(levels, dtype=np.uint8)
    meaning = Meaning(activity=np.zeros((len(boxes), levels), np.uint8), order=order)
    return encode_group(codes, boxes, levels, meaning, depth=depth)


def _boxes_behind(marks: np.ndarray, boxes: Sequence[Box]) -> list[Box]:
    """A flat box for the marked codes of each box that has some."""
    # Encoder and decoder derive these boxes from the marks, so they need no bytes.
    ends = np.cumsum([box.elements for box in boxes])
    counts = [int(np.count_nonzero(part)) for part in np.split(marks, ends[:-1])]
    return [flat_box(count) for count in counts if count]


def _decode_part(
    data: bytes, at: int, boxes: Sequence[Box], levels: int, out: Codes, depth: int
) -> int:
    if len(data) < at + 5:
        raise TerseFileError("split codes end inside a header")
    method, size = struct.unpack_from("<BI", data, at)
    part = data[at + 5 : at + 5 + size]
    if len(part) != size or method >= len(METHODS):
        raise TerseFileError(
            f"a part of split codes claims method {method} and {size} bytes, {len(part)} are there"
        )
    if out.size:
        decode_group(METHODS[method], part, boxes, levels, out, depth=depth - 1)
    elif size:
        raise TerseFileError("a part of split codes has bytes and no codes")
    return at + 5 + size


def _choices(counts: np.ndarray) -> list[np.ndarray]:
    """Sets of levels to set aside: all but the most frequent one, and those that the
    tables have no room for.
    """
    total, used = counts.sum(), counts > 0
    most = counts == counts.max()
    below = counts * GRAIN < total
    # Setting all but one aside pays only where that one has more than half.
    sets = [~most if counts.max() * 2 > total else below, below]
    return [
        aside
        for i, aside in enumerate(sets)
        if (aside & used).any()
        and not aside.all()
        and not any((aside == other).all() for other in sets[:i])
    ]


def _bits(codes: Codes, boxes: Sequence[Box], levels: int) -> tuple[float, float]:
    """What each box takes with its own exact frequencies, and with those of a table."""
    ideal = grained = 0.0
    at = 0
    for box in boxes:
        counts = np.bincount(codes[at : at + box.elements], minlength=levels)
        at += box.elements
        used = counts[counts > 0].astype(np.float64)
        ideal += float((used * np.log2(box.elements / used)).sum())
        # What occurs has a width of at least 1; divided by their sum, widths are
        # probabilities.
        widths = np.maximum(1.0, np.round(used * (GRAIN / box.elements)))
        grained += float((used * np.log2(widths.sum() / widths)).sum())
    return ideal, grained
