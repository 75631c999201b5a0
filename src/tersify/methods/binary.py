"""BinaryConnect: weights of −1 and +1, deterministic or stochastic (Courbariaux et al. 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tersify.methods.base import Method, Site, Transform, dense, register, straight_through
from tersify.tensor import CompressedTensor


@register("binary")
@dataclass(frozen=True, kw_only=True)
class BinaryConnect(Method):
    """sign(w); in training, `stochastic` draws +1 with probability clip((w + 1)/2, 0, 1) instead."""

    keeps_zeros: ClassVar[bool] = False
    stochastic: bool = False

    def transform(self, site: Site) -> Transform:
        return BinaryTransform(self.stochastic)


class BinaryTransform(Transform):
    def __init__(self, stochastic: bool) -> None:
        super().__init__()
        self.stochastic = stochastic

    def forward(self, latent: Tensor) -> Tensor:
        fixed = latent.detach()
        drawn = self.stochastic and self.training
        positive = torch.rand_like(fixed) < (fixed + 1) / 2 if drawn else fixed >= 0
        return straight_through(torch.where(positive, 1.0, -1.0).to(latent.dtype), latent.clamp(-1.0, 1.0))

    def project_(self, latent: Tensor) -> None:
        latent.clamp_(-1.0, 1.0)

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        weight = dense(upstream)
        codebook = torch.tensor([1.0, -1.0], dtype=weight.dtype, device=weight.device)
        return CompressedTensor(shape=tuple(weight.shape), codes=(weight < 0).to(torch.uint8), codebook=codebook)
