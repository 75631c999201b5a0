"""Batch norms and biases in few bits: what is left of a file when nearly all weights
are zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tersify.tensor import CompressedModel, CompressedTensor

_BatchNorm = nn.modules.batchnorm._BatchNorm


@torch.no_grad()
def coarse_norms(
    packed: CompressedModel, model: nn.Module, bits: int | None
) -> CompressedModel:
    """The same network with its batch norms folded and, like its biases, rounded to
    `bits` bits; None: as it is.

    A batch norm in eval mode is a factor and an addend for each channel. They become
    its γ and β; its mean becomes 0 and its variance 1, less ε, which cost nothing in a
    file. Each vector is rounded to whole steps of a power of two, at most 2^(bits − 1)
    of them.
    """
    if bits is None:
        return packed
    tensors: dict[str, CompressedTensor | Tensor] = {
        name: packed[name] for name in packed
    }
    # A tied vector has a second reader, for which folding would change the meaning.
    shared = set(packed.aliases) | set(packed.aliases.values())
    for prefix, module in model.named_modules():
        at = f"{prefix}." if prefix else ""
        own = {f"{at}{part}" for part in (*_PARTS, _COUNTER)}
        is_norm = isinstance(module, _BatchNorm) and _can_fold(tensors, at)
        if is_norm and not own & shared:
            _fold_(tensors, at, module.eps, bits)
        else:
            _round_bias_(tensors, at, bits)
    return CompressedModel(
        tensors, aliases=packed.aliases, recipe=packed.recipe, metadata=packed.metadata
    )


_PARTS = ("weight", "bias", "running_mean", "running_var")
_COUNTER = "num_batches_tracked"


def _fold_(
    tensors: dict[str, CompressedTensor | Tensor], at: str, eps: float, bits: int
) -> None:
    """The norm at that place becomes a rounded factor and addend."""
    parts = [_dense(tensors[f"{at}{part}"]) for part in _PARTS]
    factor, addend = folded(*parts, eps=eps)
    tensors[f"{at}weight"] = rounded(factor, bits)
    tensors[f"{at}bias"] = rounded(addend, bits)
    tensors[f"{at}running_mean"] = torch.zeros_like(factor)
    # With ε added the norm divides by √1, so γ and β act as they are.
    tensors[f"{at}running_var"] = torch.full_like(factor, 1 - eps)
    # The counter matters to further training alone, and a zero takes fewest bits.
    if f"{at}{_COUNTER}" in tensors:
        counter = _dense(tensors[f"{at}{_COUNTER}"])
        tensors[f"{at}{_COUNTER}"] = torch.zeros_like(counter)


def _round_bias_(
    tensors: dict[str, CompressedTensor | Tensor], at: str, bits: int
) -> None:
    """Biases of other layers are rounded as they are; a compressed one has its levels."""
    bias = tensors.get(f"{at}bias")
    if isinstance(bias, Tensor) and bias.ndim == 1 and bias.is_floating_point():
        tensors[f"{at}bias"] = rounded(bias, bits)


def _can_fold(tensors: dict[str, CompressedTensor | Tensor], at: str) -> bool:
    """Whether all its numbers are there, and none of them was compressed by a rule of
    its own.
    """
    return all(isinstance(tensors.get(f"{at}{part}"), Tensor) for part in _PARTS)


def _dense(tensor: CompressedTensor | Tensor) -> Tensor:
    assert isinstance(tensor, Tensor)
    return tensor.detach()


def folded(
    weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, *, eps: float
) -> tuple[Tensor, Tensor]:
    """The factor and the addend that a batch norm in eval mode is, computed in double
    precision.
    """
    factor = weight.double() / (variance.double() + eps).sqrt()
    return factor.to(weight.dtype), (bias.double() - mean.double() * factor).to(
        weight.dtype
    )


def rounded(vector: Tensor, bits: int) -> Tensor:
    """Whole steps of a power of two, of which the largest number takes at most 2^(bits
    − 1).
    """
    largest = float(vector.abs().max()) if vector.numel() else 0.0
    if largest == 0.0 or not math.isfinite(largest):
        return vector
    # 2^⌈log2 largest⌉ is at least the largest number, and 2^(bits − 1) steps reach it.
    # A power of two keeps the products exact.
    step = 2.0 ** (math.ceil(math.log2(largest)) - bits + 1)
    return (vector.double() / step).round().mul(step).to(vector.dtype) + 0.0  # no −0.0
