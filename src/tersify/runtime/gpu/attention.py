"""Attention of one new token to a cache of keys and values: reference and launch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tersify.runtime.gpu.launch import TYPES, Launch

THREADS = 256
SIZES = (32, 64, 128, 256)  # of a head: a power of two whose eighths fit a warp


def launch(
    qkv: Tensor,
    angles: tuple[Tensor, Tensor],
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    out: Tensor,
) -> Launch:
    """`keys`, `values`: [groups, room, size of a head], written at `position` (an int32
    tensor of one number).
    """
    groups, room, size = keys.shape
    assert size in SIZES
    assert qkv.itemsize == 2
    heads = qkv.numel() // size - 2 * groups
    return Launch(
        kernel="attention",
        files=("common.cuh", "attention.cu"),
        defines={"ACT": TYPES[qkv.dtype], "DIM": size, "THREADS": THREADS},
        grid=(heads, 1),
        threads=THREADS,
        arguments=(qkv, *angles, keys, values, position, out, heads, groups, room),
    )


def reference(
    qkv: Tensor,
    angles: tuple[Tensor, Tensor],
    keys: Tensor,
    values: Tensor,
    position: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """In plain torch, float64 inside: the output, and the keys and values with the new
    ones.
    """
    groups, _, size = keys.shape
    parts = qkv.double().view(-1, size)
    heads, now = len(parts) - 2 * groups, int(position)
    cosine, sine = (a[now].double().repeat(2) for a in angles)
    halves = parts.chunk(2, -1)
    turned = parts * cosine + torch.cat([-halves[1], halves[0]], -1) * sine
    keys, values = keys.clone(), values.clone()
    keys[:, now], values[:, now] = (
        turned[heads : heads + groups].to(keys.dtype),
        parts[heads + groups :].to(keys.dtype),
    )
    k = keys[:, : now + 1].double().repeat_interleave(heads // groups, 0)
    v = values[:, : now + 1].double().repeat_interleave(heads // groups, 0)
    scores = torch.einsum("hd,hpd->hp", turned[:heads], k) / math.sqrt(size)
    return torch.einsum("hp,hpd->hd", scores.softmax(-1), v).reshape(-1), keys, values
