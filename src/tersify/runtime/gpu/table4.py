"""Weights of up to 16 levels in four bits a weight: their packed form, its reference,
and the launch of its kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tersify.runtime.gpu.launch import Launch, Tiling, ceiling, defines_of
from tersify.runtime.gpu.rounding import Rounded

ROWS, FEATURES = 16, 64  # of a block; see cuda/table4.cu
LEVELS = 16
TABLE_BYTES = 32 << 10  # of a block: every pair of levels, a copy for each lane


def pack(codes: Tensor) -> Tensor:
    """Codes 0..15 of [rows, features] → int32 words [row blocks, feature blocks, 32
    lanes, 4].
    """
    rows, features = codes.shape
    tall, wide = ceiling(rows, ROWS), ceiling(features, FEATURES)
    padded = torch.zeros(
        tall * ROWS, wide * FEATURES, dtype=torch.int32, device=codes.device
    )
    padded[:rows, :features] = codes.to(torch.int32)
    parts = padded.view(tall, 2, 8, wide, 4, 2, 8)  # block, a, g, block, t, i2, nibble
    words = torch.zeros(parts.shape[:6], dtype=torch.int32, device=codes.device)
    for nibble in range(8):
        words |= parts[..., nibble] << (4 * nibble)
    return words.permute(0, 3, 2, 4, 5, 1).reshape(tall, wide, 32, 4).contiguous()


def unpack(words: Tensor, rows: int, features: int) -> Tensor:
    """The reference of the packed form: codes as uint8."""
    tall, wide = words.shape[:2]
    given = words.view(tall, wide, 8, 4, 2, 2).permute(0, 5, 2, 1, 3, 4)
    codes = torch.stack([(given >> (4 * nibble)) & 15 for nibble in range(8)], -1)
    return codes.reshape(tall * ROWS, wide * FEATURES)[:rows, :features].to(torch.uint8)


def pairs(levels: Tensor) -> Tensor:
    """16 levels in fp16 or bf16 → the two numbers of every byte, 256 int32 words."""
    both = torch.stack([levels.repeat(LEVELS), levels.repeat_interleave(LEVELS)], -1)
    return both.contiguous().view(torch.int32).reshape(LEVELS * LEVELS)


def shared_bytes(wide: int, tiling: Tiling) -> int:
    """As ternary.shared_bytes."""
    blocks = tiling.row_warps * tiling.row_blocks * wide
    return 0 if tiling.in_flight else ROWS * FEATURES // 2 * blocks


def launch(
    words: Tensor,
    table: Tensor,
    x: Tensor | Rounded,
    scale: Tensor,
    bias: Tensor | None,
    out: Tensor,
    tiling: Tiling,
    *,
    round_here: bool = False,
) -> Launch:
    """`table`: `pairs` for floats, 16 int8 steps for rounded vectors; `x` and
    `round_here` as in ternary.launch.
    """
    vectors, rows = out.shape
    given = x.steps if isinstance(x, Rounded) else x
    wide = words.shape[1]
    defines = {
        **defines_of(out, given, wide * FEATURES, tiling, round_here=round_here),
        "SWAP": 0,
        "RESIDUAL": 0,
    }
    x_scale = x.scale if isinstance(x, Rounded) else None
    return Launch(
        kernel="table4",
        files=("common.cuh", "rounding.cuh", "table4.cu"),
        defines=defines,
        grid=(ceiling(rows, tiling.rows), 1),
        threads=tiling.threads,
        shared_bytes=wide * FEATURES * round_here + shared_bytes(wide, tiling),
        arguments=(
            words,
            table,
            given,
            None,
            None,
            0.0,
            x_scale,
            scale,
            bias,
            None,
            out,
            vectors,
            rows,
            wide,
        ),
    )
