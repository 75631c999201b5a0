"""Ternary weights in two bits a weight: their packed form, its reference, and the
launch of its kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tersify.runtime.gpu.launch import Launch, Tiling, ceiling, defines_of
from tersify.runtime.gpu.rounding import Before, Rounded

ROWS, FEATURES = 16, 128  # of a block; see cuda/ternary.cu
MAX_VECTORS = 32  # of one launch


def pack(signs: Tensor) -> Tensor:
    """−1, 0 and 1 of [rows, features] → int32 words [row blocks, feature blocks, 32
    lanes, 4].
    """
    rows, features = signs.shape
    tall, wide = ceiling(rows, ROWS), ceiling(features, FEATURES)
    codes = torch.ones(
        tall * ROWS, wide * FEATURES, dtype=torch.int32, device=signs.device
    )
    codes[:rows, :features] += signs.to(torch.int32)
    # block, a, g, block, t, i2, j, u, h
    parts = codes.view(tall, 2, 8, wide, 4, 2, 4, 2, 2)
    words = torch.zeros(parts.shape[:6], dtype=torch.int32, device=signs.device)
    for j, u, h, bit in _places():
        words |= parts[..., j, u, h] << bit
    return words.permute(0, 3, 2, 4, 5, 1).reshape(tall, wide, 32, 4).contiguous()


def unpack(words: Tensor, rows: int, features: int) -> Tensor:
    """The reference of the packed form: −1, 0 and 1 as int8."""
    tall, wide = words.shape[:2]
    given = words.view(tall, wide, 8, 4, 2, 2).permute(0, 5, 2, 1, 3, 4)
    codes = torch.empty(*given.shape, 4, 2, 2, dtype=torch.int8, device=words.device)
    for j, u, h, bit in _places():
        codes[..., j, u, h] = (given >> bit) & 3
    return codes.reshape(tall * ROWS, wide * FEATURES)[:rows, :features] - 1


def _places() -> Iterator[tuple[int, int, int, int]]:
    for j in range(4):
        for u in range(2):
            for h in range(2):
                yield j, u, h, 16 * h + 8 * u + 2 * j


def shared_bytes(wide: int, tiling: Tiling) -> int:
    """Of the words of `wide` blocks of features, where a kernel brings them to shared
    memory.
    """
    blocks = tiling.row_warps * tiling.row_blocks * wide
    return 0 if tiling.in_flight else ROWS * FEATURES // 4 * blocks


def launch(
    words: Tensor,
    x: Tensor | Rounded,
    scale: Tensor,
    bias: Tensor | None,
    out: Tensor,
    tiling: Tiling,
    *,
    round_here: bool = False,
    before: Before | None = None,
    residual: Tensor | None = None,
) -> Launch:
    """`x`: [vectors, padded features]. `round_here`: a single vector is rounded to int8
    by the kernel itself, after what comes `before`. The `residual` is added to the
    output.
    """
    vectors, rows = out.shape
    given = x.steps if isinstance(x, Rounded) else x
    wide = words.shape[1]
    defines = {
        **defines_of(out, given, wide * FEATURES, tiling, round_here=round_here),
        "SWAP": 1,
        "RESIDUAL": int(residual is not None),
        **({} if before is None else {"PROLOGUE": 2 if before.factor is None else 3}),
    }
    gain, eps, factor = (
        (None, 0.0, None)
        if before is None
        else (before.gain, before.eps, before.factor)
    )
    x_scale, x_sum = (x.scale, x.sum) if isinstance(x, Rounded) else (None, None)
    # zeros behind a vector would count in its mean
    assert before is None or len(before.gain) == wide * FEATURES
    return Launch(
        kernel="ternary",
        files=("common.cuh", "rounding.cuh", "ternary.cu"),
        defines=defines,
        grid=(ceiling(rows, tiling.rows), 1),
        threads=tiling.threads,
        shared_bytes=wide * FEATURES * round_here + shared_bytes(wide, tiling),
        arguments=(
            words,
            given,
            factor,
            gain,
            eps,
            x_scale,
            x_sum,
            scale,
            bias,
            residual,
            out,
            vectors,
            rows,
            wide,
        ),
    )
