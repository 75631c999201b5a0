"""BitNet b1.58: round to −1/0/+1 after division by the mean magnitude (Ma et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tersify.methods.base import Bound, Method, Site, Transform
from tersify.methods.flat_weights import FlatWeights
from tersify.methods.registry import register
from tersify.methods.weight_math import dense, straight_through, ternary_tensor
from tersify.tensor import CompressedTensor

LEAST_SCALE = 1e-8


@register("bitnet")
@dataclass(frozen=True, kw_only=True)
class BitNet(Method):
    """γ·RoundClip(w/γ, −1, 1) with γ = mean|w| of the tensor ("absmean")."""

    def transform(self, site: Site) -> Transform:
        return BitNetTransform()

    def prepare(self, bound: Bound, weights: FlatWeights) -> Tensor:
        scale = weights.spread(
            (weights.norms(weights.values, 1) / weights.members()).clamp(
                min=LEAST_SCALE
            )
        )
        return rounded(weights.values, scale) * scale


# RoundClip of BitNet b1.58, eq. 1 and 2; round() takes halves to the even number.
def rounded(latent: Tensor, scale: Tensor) -> Tensor:
    return (latent / scale).round().clamp(-1, 1)


class BitNetTransform(Transform):
    def pattern_and_scale(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        scale = (torch.linalg.vector_norm(latent, 1) / latent.numel()).clamp(
            min=LEAST_SCALE
        )
        return rounded(latent, scale), scale

    def forward(self, latent: Tensor) -> Tensor:
        pattern, scale = self.pattern_and_scale(latent.detach())
        return straight_through(pattern * scale, latent)

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        pattern, scale = self.pattern_and_scale(dense(upstream))
        return ternary_tensor(pattern, scale=scale)
