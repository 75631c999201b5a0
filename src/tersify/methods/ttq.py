"""Trained ternary quantization: learned positive and negative levels (Zhu et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tersify.checks import check_range
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


@register("ttq")
@dataclass(frozen=True, kw_only=True)
class TrainedTernary(Method):
    """−Wn/0/+Wp with learned Wp, Wn and Δ = t · max|w| (paper 1, eq. 3)."""

    t: float = 0.05

    def __post_init__(self) -> None:
        check_range("t", self.t, low=0.0, high=1.0, low_open=True)

    def transform(self, site: Site) -> Transform:
        return TtqTransform(self.t, site.entering())

    def project_(self, bound: Bound) -> None:
        keep_positive_(levels_of(bound, "levels"))

    @torch.no_grad()
    def prepare(self, bound: Bound, weights: FlatWeights) -> Prepared:
        latents, levels = weights.values, AllLevels(levels_of(bound, "levels"), weights)
        pattern = signs_beyond(
            latents, weights.spread(self.t * weights.norms(latents, torch.inf))
        )
        plus, minus = (
            weights.spread(each) for each in levels.values.view(-1, 2).unbind(1)
        )
        # The numbers of `signed_levels` without its choices, which take several times
        # as long as arithmetic.
        up, down = pattern.clamp(min=0.0), pattern.clamp(max=0.0)
        return all_signed_levels(up, down, plus, minus, levels, weights)


class TtqTransform(Transform):
    def __init__(self, t: float, latent: Tensor) -> None:
        super().__init__()
        self.t = t
        self.levels = RelativeLevels(
            side_means(latent, self.pattern(latent)), members=latent.numel()
        )

    def pattern(self, latent: Tensor) -> Tensor:
        # TTQ, eq. 9: the threshold is the fraction t of the layer's largest magnitude.
        size = latent.abs()
        return torch.where(size > self.t * size.max(), latent.sign(), 0.0)

    def forward(self, latent: Tensor) -> Tensor:
        # The pattern has no gradient; the levels get theirs through `signed_levels`.
        pattern = self.pattern(latent.detach())
        plus, minus = self.levels().unbind()
        return signed_levels(pattern, (plus, minus), latent)

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        return ternary_tensor(
            self.pattern(dense(upstream)), levels=signed_codebook(self.levels())
        )


def side_means(latent: Tensor, pattern: Tensor) -> Tensor:
    """Mean magnitude of the weights coded +1 and of those coded −1; 1 where a side is
    empty.
    """
    means = []
    for sign in (1.0, -1.0):
        # The mean is the level with the least squared error, so training starts near
        # the latents.
        side = latent[pattern == sign].abs()
        means.append(
            side.mean() if side.numel() else torch.ones_like(latent.flatten()[0])
        )
    return torch.stack(means)


def signed_codebook(levels: Tensor) -> Tensor:
    """(Wp, Wn) → (0, Wp, −Wn)."""
    return torch.stack([torch.zeros_like(levels[0]), levels[0], -levels[1]])


def all_signed_levels(
    up: Tensor,
    down: Tensor,
    plus: Tensor,
    minus: Tensor,
    levels: AllLevels,
    weights: FlatWeights,
) -> Prepared:
    """The weights of all tensors: `up` is 1 at +Wp, `down` −1 at −Wn, else they are 0.

    `plus` and `minus` are Wp and Wn as each weight has them, out of `levels`.
    """
    value = up * plus + down * minus

    def gradient(given: Tensor) -> Tensor:
        # ∂L/∂Wp is the sum of the gradients at +Wp, and ∂L/∂Wn minus that at −Wn (eq.
        # 7); `down` carries the minus sign. Shape (tensors, 2).
        return levels.to_factors(weights.sums(given * up, given * down))

    # A weight's own level, and 1 where the weight is zero.
    gain = value.abs() + (1.0 - (up - down))
    return Prepared(value, gain, gradient)


def signed_levels(
    pattern: Tensor, levels: tuple[Tensor, Tensor], latent: Tensor
) -> Tensor:
    """The weight, with gradients for the levels and, scaled by a weight's own level,
    for the latent.
    """
    plus, minus = levels
    value = torch.where(pattern > 0, plus, torch.where(pattern < 0, -minus, 0.0))
    # TTQ, eq. 8: the latent's gradient is scaled by Wp, 1 or Wn, as its weight is
    # positive, zero or negative.
    gain = torch.where(pattern > 0, plus, torch.where(pattern < 0, minus, 1.0)).detach()
    return straight_through(value, latent, gain)
