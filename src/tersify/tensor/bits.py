"""Codes of a few bits each, packed one after the other, least significant bit first."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def bits_for(levels: int) -> int:
    """Bits that hold the codes 0..levels-1; at least one."""
    return max(1, (levels - 1).bit_length())


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """uint8 codes below 2**bits → uint8 bytes, the last one padded with zero bits."""
    _check(bits)
    flat = codes.reshape(-1).cpu().numpy()
    planes = np.unpackbits(flat[:, None], axis=1, bitorder="little")[:, :bits]
    return torch.from_numpy(np.packbits(planes.reshape(-1), bitorder="little"))


def unpack_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    """The inverse of `pack_bits` for `count` codes."""
    _check(bits)
    needed = (count * bits + 7) // 8
    if packed.numel() != needed:
        raise ValueError(f"{count} codes of {bits} bits take {needed} bytes, got {packed.numel()}")
    planes = np.unpackbits(packed.cpu().numpy(), count=count * bits, bitorder="little")
    codes = np.packbits(planes.reshape(count, bits), axis=1, bitorder="little")
    return torch.from_numpy(codes.reshape(-1))


def _check(bits: int) -> None:
    if not 1 <= bits <= 8:
        raise ValueError(f"bits must be 1..8, got {bits}")
