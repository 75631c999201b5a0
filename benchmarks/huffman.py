"""Deep Compression's own storage (Han et al. 2016): relative indices and codes, each
with a Huffman code.

A tensor's nonzero codes are stored with the number of zeros before each one; a longer
run than the index has bits for is broken by a filler of code 0. Both streams are
Huffman coded, with the code lengths in front.
"""

from __future__ import annotations

import heapq
import struct
from collections import Counter
from collections.abc import Sequence

import numpy as np

from tersify.tensor import CompressedTensor


def encode_tensor(tensor: CompressedTensor, *, index_bits: int) -> bytes:
    """The whole tensor: codebook, both streams and their tables."""
    assert tensor.codebook is not None
    gaps, codes = relative(tensor.codes.reshape(-1).numpy(), index_bits)
    book = tensor.codebook.float().numpy().tobytes()
    return (
        struct.pack("<H", tensor.codebook.numel())
        + book
        + _stream(gaps)
        + _stream(codes)
    )


def decode_codes(data: bytes, count: int) -> np.ndarray:
    """The codes of a tensor of `count` weights, back from `encode_tensor`."""
    (levels,) = struct.unpack_from("<H", data)
    gaps, at = _unstream(data, 2 + 4 * levels)
    codes, _ = _unstream(data, at)
    flat = np.zeros(count, np.uint8)
    position = -1
    for gap, code in zip(gaps, codes, strict=True):
        position += gap + 1
        flat[position] = code
    return flat


def relative(codes: np.ndarray, index_bits: int) -> tuple[list[int], list[int]]:
    """(zeros before each entry, its code), fillers included."""
    longest = 2**index_bits - 1
    gaps, kept, last = [], [], -1
    for position in np.flatnonzero(codes).tolist():
        gap = position - last - 1
        while gap > longest:
            gaps.append(longest)
            kept.append(0)
            gap -= longest + 1
        gaps.append(gap)
        kept.append(int(codes[position]))
        last = position
    return gaps, kept


def code_lengths(symbols: Sequence[int]) -> dict[int, int]:
    """Huffman's tree, as the length of each symbol's code."""
    counts = Counter(symbols)
    if len(counts) == 1:
        return dict.fromkeys(counts, 1)
    heap = [
        (count, order, {symbol: 0})
        for order, (symbol, count) in enumerate(sorted(counts.items()))
    ]
    heapq.heapify(heap)
    order = len(heap)
    while len(heap) > 1:
        (a, _, left), (b, _, right) = heapq.heappop(heap), heapq.heappop(heap)
        deeper = {symbol: length + 1 for symbol, length in (left | right).items()}
        heapq.heappush(heap, (a + b, order, deeper))
        order += 1
    return heap[0][2]


def canonical(lengths: dict[int, int]) -> dict[int, str]:
    """The codes that follow from the lengths alone, so that only those are stored."""
    codes, code, before = {}, 0, 0
    for symbol, length in sorted(lengths.items(), key=lambda item: (item[1], item[0])):
        code <<= length - before
        codes[symbol] = format(code, f"0{length}b")
        code, before = code + 1, length
    return codes


def _stream(symbols: Sequence[int]) -> bytes:
    """Count of symbols, size of the alphabet, a byte of code length for each symbol up
    to the largest, the bits.
    """
    if not symbols:
        return struct.pack("<IH", 0, 0)
    lengths = code_lengths(symbols)
    table = bytes(lengths.get(symbol, 0) for symbol in range(max(lengths) + 1))
    codes = canonical(lengths)
    bits = "".join(codes[symbol] for symbol in symbols)
    packed = np.packbits(np.frombuffer(bits.encode(), np.uint8) - ord("0")).tobytes()
    return (
        struct.pack("<IH", len(symbols), len(table))
        + table
        + struct.pack("<I", len(packed))
        + packed
    )


def _unstream(data: bytes, at: int) -> tuple[list[int], int]:
    count, size = struct.unpack_from("<IH", data, at)
    at += 6
    if not count:
        return [], at
    table, at = data[at : at + size], at + size
    (length,) = struct.unpack_from("<I", data, at)
    bits = "".join(
        map(str, np.unpackbits(np.frombuffer(data, np.uint8, length, at + 4)))
    )
    symbols = {
        code: symbol
        for symbol, code in canonical({s: n for s, n in enumerate(table) if n}).items()
    }
    found, word = [], ""
    for bit in bits:
        word += bit
        if word in symbols:
            found.append(symbols[word])
            word = ""
            if len(found) == count:
                break
    return found, at + 4 + length
