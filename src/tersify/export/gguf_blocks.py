"""Blocks of GGUF: rows of numbers as the bytes of a type that holds them exactly, and
the bytes as whole numbers with scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tersify.tensor import CompressedTensor

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
TERNARY = ("TQ2_0", "TQ1_0")
FLOATS = ("F32", "F16")
WIDE, NARROW = 256, 32  # columns of a block
SAMPLE = 64  # blocks that are tried before all are


@dataclass(frozen=True)
class Parts:
    """Whole numbers (rows × blocks × columns of a block), a scale for each block, and
    what is added to it.
    """

    wholes: npt.NDArray[np.int16]
    scale: Floats
    added: Floats | None = None


def encoded(rows: Floats, ternary: str) -> tuple[str, Any]:
    """The smallest type that holds the numbers exactly, and their data in it."""
    # llama.cpp wants vectors in full precision
    if rows.ndim != 2:
        return "F32", rows
    if rows.shape[1] % WIDE == 0 and _steps(rows, WIDE, 1):
        return ternary, _packed_signs(rows, ternary)
    if rows.shape[1] % NARROW == 0:
        if found := _steps(rows, NARROW, 8):
            return "Q4_0", _nibbles(*found, len(rows))
        if found := _steps(rows, NARROW, 127):
            wholes = found[0].astype(np.int8).view(np.uint8)
            return "Q8_0", _with_scale(wholes, found[1], len(rows))
    with np.errstate(over="ignore"):
        half = rows.astype(np.float16)
    if np.array_equal(half.astype(np.float32), rows):
        return "F16", half
    return "F32", rows


def _steps(
    rows: Floats, size: int, most: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float16]] | None:
    """For each block whole numbers of at most `most`, and a scale in half precision
    whose products with them are the block exactly; None where a block has none.

    8 is −8 with the other sign of the scale, as Q4_0 holds it.
    """
    blocks = rows.reshape(-1, size)
    if len(blocks) > SAMPLE and _steps(blocks[:SAMPLE], size, most) is None:
        return None
    top = np.abs(blocks).max(1)
    scale = np.zeros(len(blocks), np.float16)
    wholes = np.zeros_like(blocks)
    left = np.flatnonzero(top > 0)
    # the largest of a block is some number of steps
    for number in range(1, most + 1):
        with np.errstate(over="ignore"):
            tried = (top[left] / number).astype(np.float16)
        usable: npt.NDArray[np.bool_] = np.isfinite(tried) & (tried > 0)
        wide = np.where(usable, tried, 1).astype(np.float32)[:, None]
        whole = np.round(blocks[left] / wide)
        if most == number == 8:
            # only one side of zero has eight steps
            turn = np.where((whole == 8).any(1), -1, 1)[:, None]
            whole, wide = whole * turn, wide * turn
            tried = (tried * turn[:, 0]).astype(np.float16)
            usable = usable & (whole < 8).all(1)
        fits = usable & (whole * wide == blocks[left]).all(1)
        scale[left[fits]], wholes[left[fits]] = tried[fits], whole[fits]
        left = left[~fits]
        if not len(left):
            return wholes, scale
    return None if len(left) else (wholes, scale)


def _with_scale(data: Bytes, scale: npt.NDArray[np.float16], rows: int) -> Bytes:
    head = scale.reshape(-1, 1).view(np.uint8)
    return np.concatenate([head, data], 1).reshape(rows, -1)


def _nibbles(wholes: Floats, scale: npt.NDArray[np.float16], rows: int) -> Bytes:
    shifted = (wholes + 8).astype(np.uint8)
    low, high = shifted[:, : NARROW // 2], shifted[:, NARROW // 2 :]
    return _with_scale((low | high << 4).astype(np.uint8), scale, rows)


def shifted_nibbles(blocks: CompressedTensor, added: Tensor | None) -> Bytes | None:
    """The rows of Q4_1 that such blocks came from; None where they are of another type."""
    if added is None or blocks.codebook is None or blocks.scale is None:
        return None
    wholes = blocks.codebook[blocks.codes.int()].numpy().astype(np.uint8)
    low, high = wholes[..., : NARROW // 2], wholes[..., NARROW // 2 :]
    heads = [t.half().numpy().view(np.uint8) for t in (blocks.scale, added)]
    return np.concatenate([*heads, low | high << 4], -1).reshape(len(wholes), -1)


def _packed_signs(rows: Floats, ternary: str) -> Bytes:
    import gguf

    packed: Bytes = gguf.quants.quantize(rows, gguf.GGMLQuantizationType[ternary])
    return packed


def parts_of(kind: str, data: Bytes) -> Parts | None:
    """What the bytes of a row-wise array say; None for a type that is not blocks of
    whole numbers.
    """
    if kind not in ("Q4_0", "Q4_1", "Q8_0", *TERNARY):
        return None
    import gguf

    size, size_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = data.reshape(len(data), -1, size_bytes)
    if kind in TERNARY:
        scale = _halves(blocks[..., -2:])
        dense = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
        signs = np.sign(dense).reshape(*blocks.shape[:2], size)
        # the sign of what a negative scale multiplies
        return Parts((signs * np.sign(scale)).astype(np.int16), scale)
    scale = _halves(blocks[..., :2])
    if kind == "Q8_0":
        return Parts(blocks[..., 2:].view(np.int8).astype(np.int16), scale)
    codes = blocks[..., -(size // 2) :]
    wholes = np.concatenate([codes & 15, codes >> 4], -1).astype(np.int16)
    if kind == "Q4_0":
        return Parts(wholes - 8, scale)
    return Parts(wholes, scale, _halves(blocks[..., 2:4]))


def _halves(data: Bytes) -> Floats:
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)
