"""BinaryConnect: weights of −1 and +1 (Courbariaux et al. 2015); with a scale
XNOR-Net's (Rastegari et al. 2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tersify.checks import check_choice
from tersify.methods.base import Bound, Method, Site, Transform
from tersify.methods.flat_weights import FlatWeights, clip_
from tersify.methods.registry import register
from tersify.methods.weight_math import dense, over_channels, straight_through
from tersify.tensor import CompressedTensor


@register("binary")
@dataclass(frozen=True, kw_only=True)
class BinaryConnect(Method):
    """sign(w); in training, `stochastic` draws +1 with probability clip((w + 1)/2, 0,
    1) instead.

    `scale` = "channel" gives each output channel the mean magnitude of its latents as a
    factor (XNOR-Net, eq. 6).
    """

    keeps_zeros: ClassVar[bool] = False
    stochastic: bool = False
    scale: str = "none"

    def __post_init__(self) -> None:
        check_choice("scale", self.scale, ("none", "channel"))

    def transform(self, site: Site) -> Transform:
        return BinaryTransform(self.stochastic, scaled=self.scale == "channel")

    def project_(self, bound: Bound) -> None:
        clip_([site.latent for site in bound.sites])

    def prepare(self, bound: Bound, weights: FlatWeights) -> Tensor | None:
        if self.scale != "none" and any(t.ndim < 2 for t in weights.tensors):
            return None  # the transform says what is wrong
        # Latents were clipped when the step began, so the gradient passes everywhere.
        if self.stochastic:
            positive = weights.flatten([drawn_positive(t) for t in weights.tensors])
        else:
            positive = weights.values >= 0
        signs = torch.where(positive, 1.0, -1.0).to(weights.values.dtype)
        if self.scale == "none":
            return signs
        # The same 1-norm over a count as in `BinaryTransform.factor`: both must round
        # alike.
        factor = weights.norms(weights.values, 1, per_channel=True) / weights.members(
            per_channel=True
        )
        return signs * weights.spread(factor, per_channel=True)


def drawn_positive(latent: Tensor) -> Tensor:
    # Eq. 2 and 3 of BinaryConnect. The hard sigmoid needs no clip: a uniform number in
    # [0, 1) is below every value above 1 and below no negative one.
    return torch.rand_like(latent) < (latent + 1) / 2


class BinaryTransform(Transform):
    def __init__(self, stochastic: bool, *, scaled: bool = False) -> None:
        super().__init__()
        self.stochastic, self.scaled = stochastic, scaled

    def forward(self, latent: Tensor) -> Tensor:
        fixed = latent.detach()
        # Evaluation always takes the sign, so that it gives the weights that `pack`
        # stores.
        drawn = self.stochastic and self.training
        positive = drawn_positive(fixed) if drawn else fixed >= 0
        signs = torch.where(positive, 1.0, -1.0).to(latent.dtype)
        return straight_through(
            signs * self.factor(fixed) if self.scaled else signs,
            # Beyond ±1 the clamp's gradient is zero, which stops a latent that no
            # longer changes its sign from growing.
            latent.clamp(-1.0, 1.0),
        )

    def factor(self, latent: Tensor) -> Tensor:
        # The 1-norm over n weights divided by n is the mean magnitude, α of XNOR-Net's
        # eq. 6; shape (channels, 1, …).
        dims = over_channels(latent, per_channel=True)
        return torch.linalg.vector_norm(latent, 1, dims, keepdim=True) / (
            latent.numel() // len(latent)
        )

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        weight = dense(upstream)
        # Zero is no level here, so code 0 stands for +1, the value that a latent of
        # exactly zero gets in `forward`.
        codebook = torch.tensor([1.0, -1.0], dtype=weight.dtype, device=weight.device)
        return CompressedTensor(
            shape=tuple(weight.shape),
            codes=(weight < 0).to(torch.uint8),
            codebook=codebook,
            scale=self.factor(weight) if self.scaled else None,
        )
