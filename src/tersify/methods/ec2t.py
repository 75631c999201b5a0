"""Entropy-constrained trained ternarization: codes chosen by distance and by cost in bits (Marban et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tersify.methods.base import (
    Bound,
    Method,
    Site,
    Step,
    Transform,
    check_range,
    dense,
    register,
    ternary_tensor,
)
from tersify.methods.relative import RelativeLevels
from tersify.methods.ttq import side_means, signed_codebook, signed_levels
from tersify.tensor import CompressedTensor


@register("ec2t")
@dataclass(frozen=True, kw_only=True)
class EntropyConstrainedTernary(Method):
    """argmin over −Wn/0/+Wp of (w − level)² / mean level² − λ·log2 P(level) (paper 1, eq. 4).

    The distance is taken relative to the layer's squared levels, so one λ fits every layer. `warmup` is the
    share of training over which λ rises linearly from 0.
    """

    lam: float = 0.1
    warmup: float = 0.2

    def __post_init__(self) -> None:
        check_range("lam (λ)", self.lam, low=0.0, high=100.0)
        check_range("warmup", self.warmup, low=0.0, high=1.0)

    def transform(self, site: Site) -> Transform:
        return Ec2tTransform(site.entering())

    def update(self, bound: Bound, step: Step) -> None:
        rise = min(step.progress.share / self.warmup, 1.0) if self.warmup else 1.0
        for site, transform in zip(bound.sites, bound.each(Ec2tTransform), strict=True):
            transform.count_(site.entering(transform))
            transform.lam.fill_(self.lam * rise)


class Ec2tTransform(Transform):
    lam: Tensor
    prior: Tensor

    def __init__(self, latent: Tensor) -> None:
        super().__init__()
        start = torch.where(latent.abs() > 0.7 * latent.abs().mean(), latent.sign(), 0.0)
        self.levels = RelativeLevels(side_means(latent, start), members=latent.numel())
        self.register_buffer("lam", torch.zeros((), dtype=latent.dtype, device=latent.device))
        self.register_buffer("prior", torch.full((3,), 1 / 3, dtype=latent.dtype, device=latent.device))

    def pattern(self, latent: Tensor) -> Tensor:  # eq. 4
        plus, minus = self.levels().detach().unbind()
        unit = ((plus.square() + minus.square()) / 2).clamp(min=1e-12)
        bits = -self.prior.clamp(min=1e-6).log2() * self.lam
        zero = latent.square() / unit + bits[0]
        up = (latent - plus).square() / unit + bits[1]
        down = (latent + minus).square() / unit + bits[2]
        return torch.where((up < zero) & (up <= down), 1.0, torch.where(down < zero, -1.0, 0.0)).to(latent.dtype)

    @torch.no_grad()
    def count_(self, latent: Tensor) -> None:
        """Measure P from the present codes. Zero stays the most probable: a large λ would empty it otherwise."""
        pattern = self.pattern(latent)
        up, down = (pattern > 0).to(latent.dtype).mean(), (pattern < 0).to(latent.dtype).mean()
        zero = torch.maximum(1 - up - down, torch.maximum(up, down))
        counted = torch.stack([zero, up, down])
        self.prior.copy_(counted / counted.sum())

    def forward(self, latent: Tensor) -> Tensor:
        return signed_levels(self.pattern(latent.detach()), self.levels(), latent)

    def project_(self, latent: Tensor) -> None:
        self.levels.keep_positive_()

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        return ternary_tensor(self.pattern(dense(upstream)), levels=signed_codebook(self.levels()))
