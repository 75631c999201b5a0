"""What surrounds the products: packed weights made dense for a moment, and fp32 vectors
as sums of three in bf16.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tersify.runtime.gpu.launch import TYPES, Launch, ceiling

THREADS = 256
PARTS = 3  # of 8 bits each: all that fp32 holds


def unpack_launch(
    words: Tensor, levels: Tensor | None, scale: Tensor, out: Tensor
) -> Launch:
    """Two-bit words where there are no `levels`, else four-bit ones → `out`: [rows,
    features], times the scale.
    """
    rows, features = out.shape
    return Launch(
        kernel="unpack",
        files=("common.cuh", "unpack.cu"),
        defines={
            "FORM": 2 if levels is None else 4,
            "OUT": TYPES[out.dtype],
            "THREADS": THREADS,
        },
        grid=(ceiling(words.numel(), THREADS), 1),
        threads=THREADS,
        arguments=(
            words,
            levels,
            scale,
            out,
            rows,
            features,
            words.shape[1],
            words.numel(),
        ),
    )


def parts_launch(x: Tensor, out: Tensor) -> Launch:
    """fp32 vectors → bf16 [3, vectors, padded features]."""
    vectors, features = x.shape
    padded = out.shape[-1]
    return Launch(
        kernel="parts",
        files=("common.cuh", "parts.cu"),
        defines={"THREADS": THREADS},
        grid=(ceiling(vectors * padded, THREADS), 1),
        threads=THREADS,
        arguments=(x, out, vectors, features, padded),
    )


def joined_launch(sums: Tensor, bias: Tensor | None, out: Tensor) -> Launch:
    """What the parts gave, [3 · vectors, rows] in fp32, becomes `out`: [vectors, rows]."""
    vectors, rows = out.shape
    return Launch(
        kernel="joined",
        files=("common.cuh", "parts.cu"),
        defines={"THREADS": THREADS},
        grid=(ceiling(out.numel(), THREADS), 1),
        threads=THREADS,
        arguments=(sums, bias, out, vectors, rows),
    )


def parts_reference(x: Tensor) -> Tensor:
    """In plain torch, without padding."""
    made, rest = [], x
    for _ in range(PARTS):
        # The largest numbers would become infinite: they lose their last bits first.
        top = torch.finfo(torch.bfloat16).max
        part = torch.where(x.isfinite(), rest.clamp(-top, top), rest).to(torch.bfloat16)
        made.append(part)
        rest = torch.where(x.isfinite(), rest - part.float(), torch.zeros_like(x))
    return torch.stack(made)
