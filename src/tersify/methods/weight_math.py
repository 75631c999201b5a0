"""What several methods do with weights: straight-through gradients, reductions over
channels, and codes of −1, 0 and 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tersify.tensor import CompressedTensor


def dense(upstream: Tensor | CompressedTensor) -> Tensor:
    """The weights that a method before this one gave, or the latent itself."""
    if isinstance(upstream, CompressedTensor):
        return upstream.to_dense()
    return upstream.detach()


def pack_kept(upstream: Tensor | CompressedTensor, keep: Tensor) -> CompressedTensor:
    """What is kept, of what came in: where an earlier method put a zero, it stays one."""
    weight = dense(upstream)
    if isinstance(upstream, CompressedTensor):
        # Code 0 is zero by convention. Without this line an earlier zero that is kept
        # here would be stored as a value.
        keep = keep & upstream.codes.bool()
    return CompressedTensor(
        shape=tuple(weight.shape), codes=keep.to(torch.uint8), values=weight[keep]
    )


def straight_through(
    value: Tensor, latent: Tensor, gain: Tensor | float = 1.0
) -> Tensor:
    """Exactly `value` forward; backward the latent gets the gradient times `gain`,
    `value` gets it too.
    """
    # Zero in value for finite latents, and the identity in its gradient.
    passed = latent - latent.detach()
    # One multiplication less in the usual case; a tensor is not compared, which would
    # wait for a GPU.
    if not isinstance(gain, float) or gain != 1.0:
        passed = passed * gain
    return value + passed


def scale_gradient(x: Tensor, gain: Tensor | float) -> Tensor:
    """Exactly `x` forward; its gradient times `gain` backward."""
    return x.detach() + (x - x.detach()) * gain


def over_channels(x: Tensor, per_channel: bool) -> list[int]:
    """The dimensions a statistic reduces: all, or all but the output channels (axis 0)."""
    if per_channel and x.ndim < 2:
        raise ValueError(
            "per_channel needs a weight of two dimensions or more; give a bias its own rule"
        )
    return list(range(1 if per_channel else 0, x.ndim))


def ternary_codes(pattern: Tensor) -> Tensor:
    """−1/0/+1 → the codes 2/0/1."""
    # Zero is code 0, as everywhere in the package; +1 comes before −1 as in
    # `TERNARY_LEVELS`.
    return torch.where(pattern < 0, 2, (pattern > 0).to(torch.uint8)).to(torch.uint8)


TERNARY_LEVELS = (0.0, 1.0, -1.0)


def ternary_tensor(
    pattern: Tensor, *, scale: Tensor | None = None, levels: Tensor | None = None
) -> CompressedTensor:
    """A CompressedTensor from a pattern of −1/0/+1; `levels` replaces (0, +1, −1)."""
    codebook = (
        torch.tensor(TERNARY_LEVELS, dtype=pattern.dtype, device=pattern.device)
        if levels is None
        else levels
    )
    return CompressedTensor(
        shape=tuple(pattern.shape),
        codes=ternary_codes(pattern),
        codebook=codebook.detach(),
        scale=None if scale is None else scale.detach(),
    )
