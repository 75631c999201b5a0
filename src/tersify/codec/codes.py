"""Groups of codes: the encoder keeps the smallest of several codings, the directory names it."""

from __future__ import annotations

import numpy as np
import torch

from tersify.codec.errors import TerseFileError
from tersify.codec.layout import Box
from tersify.tensor import bits_for, pack_bits, unpack_bits


def encode_codes(blocks: list[tuple[Box, np.ndarray]], levels: int) -> tuple[str, bytes]:
    """The codec's name and the bytes for flat uint8 codes below `levels`."""
    joined = np.concatenate([codes for _, codes in blocks])
    return "packed", pack_bits(torch.from_numpy(joined), bits_for(levels)).numpy().tobytes()


def decode_codes(codec: str, data: bytes, boxes: list[Box], levels: int) -> list[np.ndarray]:
    """The flat codes of every box."""
    if codec != "packed":
        raise TerseFileError(f"unknown codec {codec!r}; a newer tersify may know it")
    count = sum(box.weights for box in boxes)
    bits = bits_for(levels)
    if len(data) != (count * bits + 7) // 8:
        raise TerseFileError(f"{count} codes of {bits} bits do not fill {len(data)} bytes")
    joined = unpack_bits(torch.frombuffer(bytearray(data), dtype=torch.uint8), bits, count).numpy()
    if joined.size and int(joined.max()) >= levels:
        raise TerseFileError(f"code {int(joined.max())} is outside the {levels} levels")
    return np.split(joined, np.cumsum([box.weights for box in boxes])[:-1])
