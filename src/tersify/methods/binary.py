"""BinaryConnect: weights of −1 and +1 (Courbariaux et al. 2015); with a scale XNOR-Net's (Rastegari et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tersify.checks import check_choice
from tersify.methods.base import Method, Site, Transform, dense, over_channels, register, straight_through
from tersify.tensor import CompressedTensor


@register("binary")
@dataclass(frozen=True, kw_only=True)
class BinaryConnect(Method):
    """sign(w); in training, `stochastic` draws +1 with probability clip((w + 1)/2, 0, 1) instead.

    `scale` = "channel" gives each output channel the mean magnitude of its latents as a factor (XNOR-Net, eq. 6).
    """

    keeps_zeros: ClassVar[bool] = False
    stochastic: bool = False
    scale: str = "none"

    def __post_init__(self) -> None:
        check_choice("scale", self.scale, ("none", "channel"))

    def transform(self, site: Site) -> Transform:
        return BinaryTransform(self.stochastic, scaled=self.scale == "channel")


class BinaryTransform(Transform):
    def __init__(self, stochastic: bool, *, scaled: bool = False) -> None:
        super().__init__()
        self.stochastic, self.scaled = stochastic, scaled

    def forward(self, latent: Tensor) -> Tensor:
        fixed = latent.detach()
        drawn = self.stochastic and self.training
        positive = torch.rand_like(fixed) < (fixed + 1) / 2 if drawn else fixed >= 0
        signs = torch.where(positive, 1.0, -1.0).to(latent.dtype)
        return straight_through(signs * self.factor(fixed) if self.scaled else signs, latent.clamp(-1.0, 1.0))

    def factor(self, latent: Tensor) -> Tensor:
        return latent.abs().mean(over_channels(latent, per_channel=True), keepdim=True)

    def project_(self, latent: Tensor) -> None:
        latent.clamp_(-1.0, 1.0)

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        weight = dense(upstream)
        codebook = torch.tensor([1.0, -1.0], dtype=weight.dtype, device=weight.device)
        return CompressedTensor(
            shape=tuple(weight.shape), codes=(weight < 0).to(torch.uint8), codebook=codebook,
            scale=self.factor(weight) if self.scaled else None,
        )  # fmt: skip
