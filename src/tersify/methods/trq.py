"""Ternary residual quantization: a binary stem plus a binary residual, both with one learned α (Li et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tersify.methods.base import Method, Site, Transform, dense, register, straight_through, ternary_tensor
from tersify.methods.relative import RelativeLevels
from tersify.tensor import CompressedTensor


@register("trq")
@dataclass(frozen=True, kw_only=True)
class TernaryResidual(Method):
    """α·sign(w) + α·sign(w − α·sign(w)): 0 where |w| ≤ α, else ±2α. α starts at mean|w|."""

    def transform(self, site: Site) -> Transform:
        return TrqTransform(site.entering())


class TrqTransform(Transform):
    def __init__(self, latent: Tensor) -> None:
        super().__init__()
        self.alpha = RelativeLevels(latent.abs().mean().clamp(min=1e-8), members=latent.numel())

    def stem_plus_residual(self, latent: Tensor) -> Tensor:
        """In units of α: the two signs agree (±2) beyond α and cancel below it."""
        return torch.where(latent.abs() > self.alpha().detach(), 2 * latent.sign(), 0.0)

    def forward(self, latent: Tensor) -> Tensor:
        return straight_through(self.stem_plus_residual(latent.detach()) * self.alpha(), latent)

    def project_(self, latent: Tensor) -> None:
        self.alpha.keep_positive_()

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        pattern = self.stem_plus_residual(dense(upstream))
        levels = torch.tensor([0.0, 2.0, -2.0], dtype=pattern.dtype, device=pattern.device)
        return ternary_tensor(pattern, levels=levels, scale=self.alpha())
