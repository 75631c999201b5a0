"""Weights of every packed form, with vectors for them."""

from __future__ import annotations

import torch
from torch import Tensor

from tersify.runtime.gpu.packed import (
    LISTS,
    TABLE,
    TERNARY,
    Packed,
    in_whole_steps,
    pack,
)
from tersify.runtime.gpu.products import INT8
from tersify.runtime.weights import classified_by_torch

FORMS = (TERNARY, TABLE, LISTS)
TYPES_OF = {
    "bf16 parts": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    INT8: torch.float32,
}
TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 8e-3}


def matrix(form: str, rows: int, features: int) -> Tensor:
    """A weight whose numbers every type of activations can hold."""
    g = torch.Generator().manual_seed(rows * features)
    if form == TABLE:
        levels = torch.tensor(
            [-4.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 2.0, 3.0]
        )
        return levels[torch.randint(0, len(levels), (rows, features), generator=g)]
    signs = torch.randint(-1, 2, (rows, features), generator=g)
    if form == LISTS:
        signs = signs * (torch.rand(rows, features, generator=g) < 0.15)
    return signs * (2.0 ** torch.randint(-2, 3, (rows, 1), generator=g))


def packed_weight(form: str, rows: int, features: int, activations: str) -> Packed:
    weight = classified_by_torch(matrix(form, rows, features))
    assert weight is not None
    packed = pack(weight, form)
    assert torch.equal(packed.dense(), weight.values)
    return in_whole_steps(packed) if activations == INT8 else packed


def vectors(count: int, features: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(
        count, features, generator=torch.Generator().manual_seed(count + features)
    ).to(dtype)


def bias_of(rows: int) -> Tensor:
    return torch.linspace(-1, 1, rows)
