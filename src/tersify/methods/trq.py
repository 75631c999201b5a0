"""Ternary residual quantization: a binary stem plus a binary residual, both with one
learned α (Li et al. 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tersify.methods.base import Bound, Method, Site, Transform
from tersify.methods.flat_weights import FlatWeights, Prepared, signs_beyond
from tersify.methods.registry import register
from tersify.methods.relative_levels import (
    AllLevels,
    RelativeLevels,
    keep_positive_,
    levels_of,
)
from tersify.methods.weight_math import dense, straight_through, ternary_tensor
from tersify.tensor import CompressedTensor


@register("trq")
@dataclass(frozen=True, kw_only=True)
class TernaryResidual(Method):
    """α·sign(w) + α·sign(w − α·sign(w)): 0 where |w| ≤ α, else ±2α. α starts at
    mean|w|.
    """

    def transform(self, site: Site) -> Transform:
        return TrqTransform(site.entering())

    def project_(self, bound: Bound) -> None:
        keep_positive_(levels_of(bound, "alpha"))

    @torch.no_grad()
    def prepare(self, bound: Bound, weights: FlatWeights) -> Prepared:
        levels = AllLevels(levels_of(bound, "alpha"), weights)
        alpha = weights.spread(levels.values)
        # Stem and residual have one sign beyond α, so they add up to 2.
        doubled = signs_beyond(weights.values, alpha).mul_(2.0)
        # ∂(α·pattern)/∂α is the pattern itself, 0 or ±2; the latents' gradient passes
        # as it comes.
        return Prepared(
            doubled * alpha,
            None,
            lambda g: levels.to_factors(weights.sums(g * doubled)),
        )


def stem_plus_residual(latent: Tensor, alpha: Tensor) -> Tensor:
    """In units of α: the two signs agree (±2) beyond α and cancel below it."""
    return torch.where(latent.abs() > alpha, 2 * latent.sign(), 0.0)


class TrqTransform(Transform):
    def __init__(self, latent: Tensor) -> None:
        super().__init__()
        self.alpha = RelativeLevels(
            latent.abs().mean().clamp(min=1e-8), members=latent.numel()
        )

    def forward(self, latent: Tensor) -> Tensor:
        alpha = self.alpha()
        return straight_through(
            stem_plus_residual(latent.detach(), alpha.detach()) * alpha, latent
        )

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        pattern = stem_plus_residual(dense(upstream), self.alpha().detach())
        levels = torch.tensor(
            [0.0, 2.0, -2.0], dtype=pattern.dtype, device=pattern.device
        )
        return ternary_tensor(pattern, levels=levels, scale=self.alpha())
