"""Vectors rounded to 8 bits on the GPU: the same whole numbers and scales as on the
CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tersify.runtime.gpu.launch import TYPES, Launch, held

THREADS = 512


@dataclass(frozen=True, kw_only=True, eq=False)
class Rounded:
    """`steps`: int8 [vectors, features]; `scale` and `sum` (of the steps): one a
    vector.
    """

    steps: Tensor
    scale: Tensor
    sum: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Before:
    """An RMS norm with a gain; with a `factor`, of relu(x)² times that instead of x."""

    gain: Tensor
    eps: float
    factor: Tensor | None = None

    def reference(self, x: Tensor) -> Tensor:
        numbers = x.float()
        if self.factor is not None:
            numbers = numbers.relu().square() * self.factor.float()
        return torch.nn.functional.rms_norm(
            numbers, numbers.shape[-1:], self.gain, self.eps
        )


def empty(vectors: int, features: int, device: torch.device) -> Rounded:
    return Rounded(
        steps=torch.empty(vectors, features, dtype=torch.int8, device=device),
        scale=torch.empty(vectors, dtype=torch.float32, device=device),
        sum=torch.empty(vectors, dtype=torch.int32, device=device),
    )


def launch(x: Tensor, made: Rounded, *, swapped: bool) -> Launch:
    """`swapped`: the second and third of every four numbers change places, as two-bit
    words want them.
    """
    vectors, features = x.shape
    return Launch(
        kernel="rounding",
        files=("common.cuh", "rounding.cuh"),
        defines={
            "ACT": TYPES[x.dtype],
            "THREADS": THREADS,
            "SWAP": int(swapped),
            "HOLD": held(features, THREADS),
            "ROUNDING_KERNEL": 1,
        },
        grid=(vectors, 1),
        threads=THREADS,
        arguments=(x, None, None, 0.0, made.steps, made.scale, made.sum, features // 8),
    )


def reference(x: Tensor, *, swapped: bool) -> Rounded:
    """In plain torch; the formula of csrc/runtime/kernels/linear-i8."""
    numbers = x.float()
    top = numbers.abs().amax(-1)
    # Divided by tensors: on a GPU torch multiplies with the inverse of a Python number,
    # which rounds differently.
    scale = (top / torch.full_like(top, 127)).clamp(min=torch.finfo(torch.float32).tiny)
    inverse = torch.ones_like(scale) / scale
    steps = (numbers * inverse.unsqueeze(-1)).round().nan_to_num(0, 0, 0).to(torch.int8)
    total = steps.sum(-1, dtype=torch.int32)
    if swapped:
        steps = steps.view(len(x), -1, 4)[..., [0, 2, 1, 3]].reshape(len(x), -1)
    return Rounded(
        steps=steps, scale=torch.where(top.isfinite(), scale, torch.nan), sum=total
    )
