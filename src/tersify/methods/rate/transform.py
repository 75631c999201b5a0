"""A weight that stays where its square is worth its bits, and what those bits add to
the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tersify.methods.base import Transform
from tersify.methods.flat_weights import FlatWeights
from tersify.methods.weight_math import dense, pack_kept, straight_through
from tersify.tensor import CompressedTensor


class RateTransform(Transform):
    """The latent where its square is above its limit, zero elsewhere; a zero's gradient
    passes, so that it can return.

    `limit` is λ × the weight's bits × the squared size of the layer's weights. `size`
    is that root mean square.
    """

    limit: Tensor
    size: Tensor

    def __init__(self, latent: Tensor) -> None:
        super().__init__()
        self.register_buffer("limit", torch.zeros_like(latent))
        self.register_buffer(
            "size", torch.ones((), dtype=latent.dtype, device=latent.device)
        )

    def kept(self, latent: Tensor) -> Tensor:
        return latent.square() > self.limit

    def forward(self, latent: Tensor) -> Tensor:
        value = latent.detach()
        # The gradient passes everywhere, also at zeros, so that a weight can come back.
        return straight_through(torch.where(self.kept(value), value, 0.0), latent)

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        return pack_kept(upstream, self.kept(dense(upstream)))


class ExpectedBits(torch.autograd.Function):
    """λ × bits of all weights: the number is the file's, the slope that of a line from
    one level to the next.

    Between zero and the level, at twice the limit's root, a weight's bits rise in a
    straight line; a weight beyond has them all. So each weight that is not safely
    beyond is pulled towards zero, by what it would save.
    """

    @staticmethod
    def forward(
        ctx: Any,
        value: Tensor,
        transforms: Sequence[RateTransform],
        constants: dict[str, Tensor],
        *latents: Tensor,
    ) -> Tensor:
        ctx.transforms, ctx.constants = transforms, constants
        ctx.save_for_backward(*latents)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        weights = FlatWeights(ctx.saved_tensors, ctx.constants)
        limits = weights.flatten([t.limit for t in ctx.transforms])
        values = weights.values
        # A line from 0 to the bits at |w| = 2√limit has the slope λ·bits / (2√limit) =
        # √limit / (2·size²), since λ·bits = limit / size². The 2·size² is in
        # `steepness`.
        slope = limits.sqrt() * values.sign() * (values.square() < 4 * limits)
        sizes = torch.stack([t.size for t in ctx.transforms])
        steepness = gradient / (2 * values.numel() * sizes.square())
        return None, None, None, *weights.pieces(slope * weights.spread(steepness))
