"""Sparsity, entropy and histograms, computed from what weights became and from nothing
else.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from tersify.tensor.compressed import CompressedTensor


def code_counts(tensor: CompressedTensor) -> Tensor:
    """How often each code occurs: (K,) int64; two entries (zero, kept) for a pruned
    tensor.
    """
    return torch.bincount(tensor.codes.reshape(-1), minlength=tensor.levels or 2)


def zero_count(tensor: CompressedTensor) -> int:
    """Weights that are exactly zero. Only code 0 can be a zero level, but it need not
    be one.
    """
    scales = (tensor.scale, tensor.column_scale)
    scaled_away = any(
        scale is not None and bool((scale == 0).any()) for scale in scales
    )
    # Codes alone do not tell: code 0 may be zero in some rows only, or a scale of 0 may
    # make a whole row zero.
    if tensor.axis is not None or scaled_away:
        return tensor.numel() - int(tensor.to_dense().count_nonzero())
    if tensor.values is not None:
        return tensor.numel() - int(tensor.values.count_nonzero())
    return int((code_counts(tensor) * (tensor.codebook == 0)).sum())


def sparsity_percent(tensors: Iterable[CompressedTensor]) -> float:
    """Fraction of exact zeros over all the tensors together, in percent."""
    # Over all weights together, so large tensors count more than small ones.
    total = zeros = 0
    for tensor in tensors:
        total += tensor.numel()
        zeros += zero_count(tensor)
    return 100.0 * zeros / total if total else 0.0


def entropy_bits(tensors: Iterable[CompressedTensor]) -> float:
    """Bits per weight of an ideal order-0 coder.

    Tensors with equally many levels share one distribution, so a ternary network is
    measured by the joint distribution of −1/0/+1 over all of it. A pruned tensor counts
    its mask and, for each survivor, the full width of its dtype.
    """
    pooled: dict[int, Tensor] = {}
    bits = 0.0
    total = 0
    for tensor in tensors:
        total += tensor.numel()
        counts = code_counts(tensor).cpu()
        if tensor.levels is None:
            # counts[1]: the survivors, each with a value of its own.
            bits += _order0_bits(counts) + int(counts[1]) * tensor.dtype.itemsize * 8
        else:
            pooled[tensor.levels] = (
                pooled.get(tensor.levels, torch.zeros_like(counts)) + counts
            )
    bits += sum(map(_order0_bits, pooled.values()))
    return bits / total if total else 0.0


def latent_histogram(
    latent: Tensor, *, bins: int = 101, limit: float = 1.0
) -> dict[str, list[float]]:
    """Counts of a latent's values over [-limit, limit]; values beyond count in the
    outermost bins.
    """
    values = latent.detach().float().cpu().reshape(-1).clamp(-limit, limit)
    counts, edges = torch.histogram(values, bins=bins, range=(-limit, limit))
    return {"counts": counts.tolist(), "edges": edges.tolist()}


def _order0_bits(counts: Tensor) -> float:
    # Σ n · log2(N / n), where 0 · log 0 counts as 0.
    used = counts[counts > 0].double()
    return float((used * (used.sum() / used).log2()).sum())
