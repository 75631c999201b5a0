"""Tensors that are equal bit for bit, such as the layers of an encoder that was made by
copying one, stored once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch
from torch import Tensor

from tersify.tensor import CompressedTensor
from tersify.tensor.compressed import same_bits

MIN_BYTES = 256  # below it a reference takes as much as the tensor
SAMPLE = 64


def equal_tensors(model: Mapping[str, CompressedTensor | Tensor]) -> dict[str, str]:
    """Each name whose tensor equals an earlier one → the first name that holds it."""
    first: dict[Hashable, list[str]] = {}
    same: dict[str, str] = {}
    for name, tensor in model.items():
        if tensor.numel() * tensor.dtype.itemsize < MIN_BYTES:
            continue
        # The sketch only narrows the search; every candidate is compared in full.
        alike = first.setdefault(_sketch(tensor), [])
        found = next((other for other in alike if _equal(model[other], tensor)), None)
        if found is None:
            alike.append(name)
        else:
            same[name] = found
    return same


def _sketch(tensor: CompressedTensor | Tensor) -> Hashable:
    """What equal tensors have in common, from a few elements."""
    held = tensor.codes if isinstance(tensor, CompressedTensor) else tensor
    flat = held.detach().reshape(-1)
    some = flat[:: max(1, flat.numel() // SAMPLE)].cpu().contiguous().view(torch.uint8)
    return type(tensor), tuple(tensor.shape), tensor.dtype, some.numpy().tobytes()


def _equal(a: CompressedTensor | Tensor, b: CompressedTensor | Tensor) -> bool:
    if isinstance(a, CompressedTensor):
        return isinstance(b, CompressedTensor) and a.equal(b)
    return isinstance(b, Tensor) and same_bits(a, b)
