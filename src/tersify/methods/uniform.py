"""Uniform n-bit quantization (paper 1, eq. 1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tersify.checks import check_range
from tersify.methods.base import Bound, Method, Site, Transform
from tersify.methods.flat_weights import FlatWeights
from tersify.methods.registry import register
from tersify.methods.weight_math import dense, over_channels, straight_through
from tersify.tensor import CompressedTensor


@register("uniform")
@dataclass(frozen=True, kw_only=True)
class Uniform(Method):
    """S·(round(w/S)) on 2^bits − 1 symmetric levels, or on 2^bits levels that span
    min…max.

    S follows the weights in every step. The asymmetric range always includes zero, so
    zero is a level. `clip` is the fraction of the range that the levels span; what lies
    beyond is clipped. With `printed` the symmetric S is that of eq. 1, (β − α)/(2^bits
    − 1) over the range α = −β, with one level more below zero than above.
    """

    bits: int = 8
    symmetric: bool = True
    per_channel: bool = False
    clip: float = 1.0
    printed: bool = False

    def __post_init__(self) -> None:
        if self.bits not in range(2, 9):
            raise ValueError(f"bits must be 2..8, got {self.bits!r}")
        check_range("clip", self.clip, low=0.0, high=1.0, low_open=True)
        if self.printed and not self.symmetric:
            raise ValueError(
                "printed is about the symmetric scale, and symmetric is false; leave one of them out"
            )

    def transform(self, site: Site) -> Transform:
        return UniformTransform(self)

    def prepare(self, bound: Bound, weights: FlatWeights) -> Tensor | None:
        each, values = self.per_channel, weights.values
        if each and any(t.ndim < 2 for t in weights.tensors):
            return None  # the transform says what is wrong
        if self.symmetric:
            scale, low, top = self.symmetric_grid(
                weights.norms(values, torch.inf, per_channel=each)
            )
        else:
            # Only norms are available per tensor of the flat vector. The maximum norm
            # of the negative part alone is minus the smallest weight, or zero.
            lowest = -weights.norms(values.clamp(max=0), torch.inf, per_channel=each)
            highest = weights.norms(values.clamp(min=0), torch.inf, per_channel=each)
            scale, low, top = self.asymmetric_grid(lowest, highest)
        scale, low, top = (
            weights.spread(x, per_channel=each) for x in (scale, low, top)
        )
        return (values / scale).round().clamp(low, top) * scale

    def symmetric_grid(self, largest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scale, and the lowest and highest integer, each of the shape of `largest`,
        the greatest magnitudes.
        """
        top = torch.full_like(largest, 2.0 ** (self.bits - 1) - 1)
        # a call less in every step
        reach = largest if self.clip == 1 else self.clip * largest
        # Eq. 1 as printed divides the whole range by 2^bits − 1 steps, which needs the
        # extra level below zero; the usual symmetric grid has equally many on both
        # sides.
        scale, low = (
            (2 * reach / (2.0**self.bits - 1), -top - 1)
            if self.printed
            else (reach / top, -top)
        )
        # A weight of zeros only has no range; any scale then gives zeros, but 0/0 would
        # give NaN.
        return torch.where(scale > 0, scale, 1.0), low, top

    def asymmetric_grid(
        self, lowest: Tensor, highest: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same for a range that includes zero."""
        steps = 2.0**self.bits - 1
        scale = self.clip * (highest - lowest) / steps
        scale = torch.where(scale > 0, scale, 1.0)
        # Rounded, so that zero falls on a level: a pruned weight must stay zero.
        low = (self.clip * lowest / scale).round()
        return scale, low, low + steps


class UniformTransform(Transform):
    def __init__(self, method: Uniform) -> None:
        super().__init__()
        self.method = method

    def grid(self, latent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scale, and the lowest and highest integer, each () or one per channel."""
        keep, dims = (
            self.method.per_channel,
            over_channels(latent, self.method.per_channel),
        )
        if self.method.symmetric:
            return self.method.symmetric_grid(latent.abs().amax(dims, keepdim=keep))
        # The clamp makes the range include zero, even where all weights have one sign.
        lowest = latent.amin(dims, keepdim=keep).clamp(max=0)
        return self.method.asymmetric_grid(
            lowest, latent.amax(dims, keepdim=keep).clamp(min=0)
        )

    def integers(self, latent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scale, low, top = self.grid(latent)
        return (latent / scale).round().clamp(low, top), scale, low

    def forward(self, latent: Tensor) -> Tensor:
        integers, scale, _ = self.integers(latent.detach())
        return straight_through(integers * scale, latent)

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        integers, scale, low = self.integers(dense(upstream))
        levels = 2**self.method.bits
        # Codes are the integers modulo 2^bits, so that code 0 is zero; a level is the
        # one integer of [low, low + 2^bits) that a code stands for.
        codes = integers.long().remainder(levels).to(torch.uint8)
        codebook = low.reshape(-1, 1) + (
            torch.arange(levels, device=low.device) - low.reshape(-1, 1)
        ).remainder(levels)
        # Symmetric channels differ in their scale alone, so one row of levels serves
        # all of them; asymmetric ones also differ in `low`.
        shared = self.method.symmetric or not self.method.per_channel
        return CompressedTensor(
            shape=tuple(integers.shape),
            codes=codes,
            codebook=codebook[0] if shared else codebook,
            scale=scale,
            axis=None if shared else 0,
            format={"n": self.method.bits},
        )
