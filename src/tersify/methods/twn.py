"""Ternary weight networks: threshold and scale from the mean magnitude (Li et al.)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tersify.checks import check_range
from tersify.methods.base import (
    Method,
    Site,
    Transform,
    dense,
    over_channels,
    register,
    straight_through,
    ternary_tensor,
)
from tersify.tensor import CompressedTensor


@register("twn")
@dataclass(frozen=True, kw_only=True)
class TernaryWeightNetwork(Method):
    """α·(−1/0/+1): Δ = factor · mean|w|, α the mean magnitude above Δ; per tensor or output channel."""

    factor: float = 0.7
    per_channel: bool = False

    def __post_init__(self) -> None:
        check_range("factor", self.factor, low=0.0, high=10.0, low_open=True)

    def transform(self, site: Site) -> Transform:
        return TwnTransform(self.factor, self.per_channel)


class TwnTransform(Transform):
    def __init__(self, factor: float, per_channel: bool) -> None:
        super().__init__()
        self.factor, self.per_channel = factor, per_channel

    def pattern_and_scale(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        dims = over_channels(latent, self.per_channel)
        size = latent.abs()
        kept = size > self.factor * size.mean(dims, keepdim=self.per_channel)
        count = kept.sum(dims, keepdim=self.per_channel).clamp(min=1)
        scale = (size * kept).sum(dims, keepdim=self.per_channel) / count
        return torch.where(kept, latent.sign(), 0.0), scale

    def forward(self, latent: Tensor) -> Tensor:
        pattern, scale = self.pattern_and_scale(latent.detach())
        return straight_through(pattern * scale, latent)

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        pattern, scale = self.pattern_and_scale(dense(upstream))
        return ternary_tensor(pattern, scale=scale)
