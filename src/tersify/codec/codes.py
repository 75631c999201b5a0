"""Blocks of codes: the encoder keeps the smallest of several codings, the file names
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import zstandard

from tersify.codec.errors import TerseFileError
from tersify.codec.layout import Box
from tersify.codec.native import (
    Codes,
    decode_rans,
    encode_rans,
    pack_codes,
    unpack_codes,
)
from tersify.tensor import bits_for, bytes_for

# zstd tries hard up to this size, and beyond it where quicker tries come near
THOROUGH_BYTES = 1 << 18
# level, and the fraction of the best size that is near
QUICK_TRIES = ((3, 1.05), (12, 1.005))


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What the encoder may know about codes. It changes how small the result is, and
    nothing else.
    """

    activity: Codes  # (boxes, levels): how far each level is from zero
    order: Codes  # the codes, sorted by level


def encode_codes(
    codes: Codes,
    boxes: Sequence[Box],
    levels: int,
    meaning: Meaning,
    *,
    worth_coding: bool = True,
    repeats: bool = True,
) -> tuple[str, bytes]:
    """The codec's name and the bytes, for the flat codes of all boxes.

    The entropy coder is tried where codes are `worth_coding`, and zstd where they may
    have `repeats`.
    """
    bits = bits_for(levels)
    best = ("packed", b"")
    # Bit packing always works and sets the bound; its bytes are made only if nothing
    # beats it.
    best_bytes = bytes_for(codes.size, bits)
    if worth_coding:
        coded = encode_rans(codes, boxes, levels, meaning.activity, meaning.order)
        if coded is not None and len(coded) < best_bytes:
            best, best_bytes = ("rans", coded), len(coded)
    frame = zipped(codes, best_bytes) if repeats else None
    if frame is not None:
        return "zstd", frame
    return best if best[0] == "rans" else ("packed", pack_codes(codes, bits))


def decode_codes(
    codec: str, data: bytes, boxes: Sequence[Box], levels: int, out: Codes
) -> None:
    """Decode into `out`, which has exactly one byte per code of the boxes."""
    if codec == "rans":
        decode_rans(data, boxes, levels, out)
    elif codec == "packed":
        unpack_codes(data, levels, out)
    elif codec == "zstd":
        unzip(data, out)
    else:
        raise TerseFileError(f"unknown codec {codec!r}; a newer tersify may know it")
    # A code beyond the codebook would read foreign memory in a kernel.
    if out.size and int(out.max()) >= levels:
        raise TerseFileError(f"code {int(out.max())} is outside the {levels} levels")


def zipped(
    codes: Codes, limit: int, *, thorough_bytes: int = THOROUGH_BYTES
) -> bytes | None:
    """A zstd frame of fewer than `limit` bytes: what repeats is not seen by a coder of
    single codes.
    """
    # zstd's level 19 takes a second for some megabytes. A quick level that is far from
    # the limit says that the best one will not reach it either.
    for level, near in QUICK_TRIES if codes.size > thorough_bytes else ():
        quick = len(zstandard.ZstdCompressor(level=level).compress(codes.data))
        if quick > near * limit:
            return None
        if quick < limit:
            break
    frame = zstandard.ZstdCompressor(level=19).compress(codes.data)
    return frame if len(frame) < limit else None


def unzip(frame: bytes, out: Codes) -> None:
    try:
        # Before decompressing: a small frame may claim gigabytes.
        if zstandard.frame_content_size(frame) != out.size:
            raise TerseFileError(f"a zstd frame must hold {out.size} codes")
        raw = zstandard.ZstdDecompressor().decompress(
            frame, max_output_size=out.size, allow_extra_data=False
        )
    except zstandard.ZstdError as problem:
        raise TerseFileError(f"codes cannot be unpacked: {problem}") from None
    if len(raw) != out.size:
        raise TerseFileError(
            f"a zstd frame must hold {out.size} codes, it holds {len(raw)}"
        )
    out[:] = np.frombuffer(raw, np.uint8)
