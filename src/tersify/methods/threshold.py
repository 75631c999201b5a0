"""The transform behind every unscaled or scaled ternary method with an explicit threshold."""

from __future__ import annotations

import torch
from torch import Tensor

from tersify.methods.base import Transform, check_choice, check_range, dense, straight_through, ternary_tensor
from tersify.methods.relative import RelativeLevels
from tersify.tensor import CompressedTensor

SCALES = ("none", "tensor", "channel")


def check_latent_settings(spread: float | None, scale: str) -> None:
    if spread is not None:
        check_range("spread", spread, low=0.0, high=1.0, low_open=True)
    check_choice("scale", scale, SCALES)


class TernaryTransform(Transform):
    threshold: Tensor

    def __init__(
        self, latent: Tensor, *, threshold: float, clip: bool = True, spread: float | None = None, scale: str = "none"
    ) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("threshold", torch.tensor(threshold, dtype=latent.dtype, device=latent.device))
        with torch.no_grad():
            size = latent.std(correction=0)
            if spread is not None and size > 0:
                latent.mul_(spread / size)
            self.factor = None
            if scale != "none":
                # The quantized weight starts with the root mean square of the one it replaces.
                density = (latent.abs() > self.threshold).to(latent.dtype).mean().clamp(min=0.01)
                start = size / density.sqrt()
                per_channel = (latent.shape[0], *[1] * (latent.ndim - 1))
                self.factor = RelativeLevels(
                    start.expand(per_channel if scale == "channel" else ()), members=latent.numel()
                )

    def pattern(self, latent: Tensor) -> Tensor:  # eq. 5
        return torch.where(latent.abs() > self.threshold, latent.sign(), 0.0)

    def forward(self, latent: Tensor) -> Tensor:
        # The clamp is eq. 2: outside [-1, 1] no gradient passes. On the border it does, since a clipped
        # latent could otherwise never come back.
        value = straight_through(self.pattern(latent.detach()), latent.clamp(-1.0, 1.0))
        return value if self.factor is None else value * self.factor()

    def project_(self, latent: Tensor) -> None:
        if self.clip:
            latent.clamp_(-1.0, 1.0)

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        pattern = self.pattern(dense(upstream))
        return ternary_tensor(pattern, scale=None if self.factor is None else self.factor())
