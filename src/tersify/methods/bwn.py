"""Binary weight networks: a sign times the mean magnitude of its channel (Rastegari et al. 2016, XNOR-Net's BWN)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tersify.methods.base import Method, Site, Transform, dense, over_channels, register, straight_through
from tersify.tensor import CompressedTensor


@register("bwn")
@dataclass(frozen=True, kw_only=True)
class BinaryWeightNetwork(Method):
    """α·sign(w), α the mean magnitude of the tensor or, with `per_channel`, of the output channel.

    Unlike 'binary' it keeps the size of a layer's outputs, which a network without batch norms needs.
    """

    keeps_zeros: ClassVar[bool] = False
    per_channel: bool = False

    def transform(self, site: Site) -> Transform:
        return BwnTransform(self.per_channel)


class BwnTransform(Transform):
    def __init__(self, per_channel: bool) -> None:
        super().__init__()
        self.per_channel = per_channel

    def scale(self, latent: Tensor) -> Tensor:
        return latent.abs().mean(over_channels(latent, self.per_channel), keepdim=self.per_channel)

    def forward(self, latent: Tensor) -> Tensor:
        fixed = latent.detach()
        return straight_through(torch.where(fixed >= 0, 1.0, -1.0).to(fixed.dtype) * self.scale(fixed), latent)

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        weight = dense(upstream)
        codebook = torch.tensor([1.0, -1.0], dtype=weight.dtype, device=weight.device)
        return CompressedTensor(
            shape=tuple(weight.shape), codes=(weight < 0).to(torch.uint8), codebook=codebook, scale=self.scale(weight)
        )
