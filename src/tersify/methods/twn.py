"""Ternary weight networks: threshold and scale from the mean magnitude (Li et al.)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tersify.checks import check_range
from tersify.methods.base import Bound, Method, Site, Transform
from tersify.methods.flat_weights import FlatWeights, signs_beyond
from tersify.methods.registry import register
from tersify.methods.weight_math import (
    dense,
    over_channels,
    straight_through,
    ternary_tensor,
)
from tersify.tensor import CompressedTensor


@register("twn")
@dataclass(frozen=True, kw_only=True)
class TernaryWeightNetwork(Method):
    """α·(−1/0/+1): Δ = factor · mean|w|, α the mean magnitude above Δ; per tensor or
    output channel.

    With `exact` Δ leaves the least squared error (eq. 5), of which 0.7 means is an
    approximation (eq. 6).
    """

    factor: float = 0.7
    exact: bool = False
    per_channel: bool = False

    def __post_init__(self) -> None:
        check_range("factor", self.factor, low=0.0, high=10.0, low_open=True)
        if self.exact and self.factor != 0.7:
            raise ValueError(
                f"factor ({self.factor:g}) and exact both set the threshold; give one of them"
            )

    def transform(self, site: Site) -> Transform:
        return TwnTransform(None if self.exact else self.factor, self.per_channel)

    def prepare(self, bound: Bound, weights: FlatWeights) -> Tensor | None:
        each = self.per_channel
        if each and any(t.ndim < 2 for t in weights.tensors):
            return None  # the transform says what is wrong
        # The operations follow `TwnTransform.pattern_and_scale` one for one: a prepared
        # weight must equal the computed one in every bit.
        size = weights.values.abs()
        if self.exact:
            least = torch.cat(
                [
                    _least_kept_magnitude(t.detach().abs(), each).reshape(-1)
                    for t in weights.tensors
                ]
            )
            kept = size >= weights.spread(least, per_channel=each)
            pattern = torch.where(kept, weights.values.sign(), 0.0)
        else:
            limit = self.factor * (
                weights.norms(size, 1, per_channel=each)
                / weights.members(per_channel=each)
            )
            pattern = signs_beyond(
                weights.values, weights.spread(limit, per_channel=each)
            )
        # A channel may keep nothing (all weights equal zero); its scale is then 0/1 and
        # not NaN.
        count = weights.norms(pattern, 1, per_channel=each).clamp(min=1)
        scale = weights.norms(pattern * size, 1, per_channel=each) / count
        return pattern * weights.spread(scale, per_channel=each)


class TwnTransform(Transform):
    def __init__(self, factor: float | None, per_channel: bool) -> None:
        super().__init__()
        self.factor, self.per_channel = factor, per_channel

    def pattern_and_scale(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        dims = over_channels(latent, self.per_channel)
        # How many weights share one threshold and one scale.
        members = latent.numel() // (len(latent) if self.per_channel else 1)
        size = latent.abs()

        def total(of: Tensor) -> Tensor:
            return torch.linalg.vector_norm(of, 1, dims, keepdim=self.per_channel)

        if self.factor is None:
            kept = size >= _least_kept_magnitude(size, self.per_channel)
        else:
            kept = size > self.factor * (total(size) / members)
        # At least 1: where nothing is kept the scale shall be zero and not NaN.
        count = kept.sum(dims, keepdim=self.per_channel).clamp(min=1)
        scale = total(torch.where(kept, size, 0.0)) / count
        return torch.where(kept, latent.sign(), 0.0), scale

    def forward(self, latent: Tensor) -> Tensor:
        pattern, scale = self.pattern_and_scale(latent.detach())
        return straight_through(pattern * scale, latent)

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        pattern, scale = self.pattern_and_scale(dense(upstream))
        return ternary_tensor(pattern, scale=scale)


def _least_kept_magnitude(size: Tensor, per_channel: bool) -> Tensor:  # TWN, eq. 5
    """Of the largest k magnitudes with sum s, the k with the largest s²/k leaves the
    least squared error.
    """
    # One row for each threshold that is sought.
    rows = size.reshape(size.shape[0] if per_channel else 1, -1)
    # In double precision, since the sums of a million float32 magnitudes would lose the
    # digits that decide between neighbouring counts.
    ordered = rows.double().sort(1, descending=True).values
    # For the k largest magnitudes with sum s the best scale is s/k, and the squared
    # error is Σw² − s²/k: the first term is the same for every k.
    counts = torch.arange(1, rows.shape[1] + 1, device=size.device)
    best = (ordered.cumsum(1).square() / counts).argmax(1, keepdim=True)
    least = ordered.gather(1, best).to(size.dtype)
    return least.view(-1, *[1] * (size.ndim - 1)) if per_channel else least.view(())
