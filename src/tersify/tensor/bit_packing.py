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
    # eight codes fill exactly `bits` bytes
    eights = np.zeros((-(-flat.size // 8), 8), np.uint8)
    eights.reshape(-1)[: flat.size] = flat
    # Eight codes of at most eight bits fit one 64-bit word. Little-endian, so that its
    # low `bits` bytes are the packed ones, on any machine.
    words = np.zeros(len(eights), "<u8")
    for place in range(8):
        words |= eights[:, place].astype("<u8") << np.uint64(place * bits)
    packed = words.view(np.uint8).reshape(-1, 8)[:, :bits].reshape(-1)
    return torch.from_numpy(packed[: bytes_for(flat.size, bits)].copy())


def unpack_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    """The inverse of `pack_bits` for `count` codes."""
    _check(bits)
    needed = bytes_for(count, bits)
    if packed.numel() != needed:
        raise ValueError(
            f"{count} codes of {bits} bits take {needed} bytes, got {packed.numel()}"
        )
    # The inverse: `bits` bytes are widened to a 64-bit word, then split.
    eights = -(-count // 8)
    padded = np.zeros(eights * bits, np.uint8)
    padded[:needed] = packed.cpu().numpy()
    words = np.zeros((eights, 8), np.uint8)
    words[:, :bits] = padded.reshape(eights, bits)
    wide = words.reshape(-1).view("<u8")
    codes = np.empty((eights, 8), np.uint8)
    for place in range(8):
        codes[:, place] = (wide >> np.uint64(place * bits)).astype(np.uint8) & np.uint8(
            (1 << bits) - 1
        )
    return torch.from_numpy(codes.reshape(-1)[:count])


def bytes_for(count: int, bits: int) -> int:
    """Bytes that hold `count` codes of `bits` bits each."""
    return (count * bits + 7) // 8


def _check(bits: int) -> None:
    if not 1 <= bits <= 8:
        raise ValueError(f"bits must be 1..8, got {bits}")
