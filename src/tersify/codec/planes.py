"""Groups of arrays: sign, exponent and mantissa lie apart, and each plane is coded by
what suits it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tersify.codec.codes import THOROUGH_BYTES, Meaning, decode_codes, encode_codes
from tersify.codec.entropy import order0_bits
from tersify.codec.errors import TerseFileError
from tersify.codec.layout import Box
from tersify.codec.native import Codes, join_planes, split_planes

METHODS = ("packed", "rans", "zstd")
# of the bits of a plane: with more entropy than this it is stored as it is
NOISE_FRACTION = 0.99
SAMPLE_MARK = 0x55  # repeats are looked for where the last plane has this code
SAMPLE = 1 << 13
REPEATED_FRACTION = 1 / 64
WINDOW = 8
MIN_WIDE_BYTES = 4
FEW_FRACTION = 0.75  # different ones among elements: fewer of them return
GRID_FRACTION = 0.87  # of the entropy of planes: what short elements take that return


def plane_levels(width: int, *, is_float: bool) -> list[int]:
    """The alphabets of the planes of elements of `width` bytes, most significant first."""
    # A float splits into its sign, the 8 bits behind it (float32's whole exponent), and
    # so on; 7 bits remain for the last plane.
    return [2, *[256] * (width - 1), 128] if is_float else [256] * width


def encode_planes(
    data: Codes, boxes: Sequence[Box], width: int, *, is_float: bool
) -> bytes:
    """The planes of the elements of all boxes."""
    levels = plane_levels(width, is_float=is_float)
    planes = split_planes(data, width, levels)
    repeats = may_repeat(data, width, planes[-1][0])
    out = []
    for (plane, counts), size in zip(planes, levels, strict=True):
        meaning = Meaning(
            activity=np.zeros((len(boxes), size), np.uint8),
            order=np.arange(size, dtype=np.uint8),
        )
        # The low bits of a mantissa are noise, and an entropy coder would spend its
        # time to save nothing.
        coded = plane.size <= THOROUGH_BYTES or not _is_noise(counts)
        method, made = encode_codes(
            plane, boxes, size, meaning, worth_coding=coded, repeats=repeats
        )
        out.append(struct.pack("<BI", METHODS.index(method), len(made)) + made)
    return b"".join(out)


def decode_planes(
    data: bytes, boxes: Sequence[Box], width: int, *, is_float: bool
) -> Codes:
    """The bytes of all elements; every length is checked before it is believed."""
    count = sum(box.elements for box in boxes)
    levels = plane_levels(width, is_float=is_float)
    at = 0
    coded: list[tuple[str, Codes]] = []
    for size in levels:
        if len(data) < at + 5:
            raise TerseFileError("a group of arrays ends inside a plane's header")
        method, length = struct.unpack_from("<BI", data, at)
        plane = np.frombuffer(data, np.uint8)[at + 5 : at + 5 + length]
        # A slice beyond the end is shorter without an error, so its length is compared.
        if len(plane) != length or method >= len(METHODS):
            raise TerseFileError(
                f"a plane claims method {method} and {length} bytes, {len(plane)} are there"
            )
        at += 5 + length
        if METHODS[method] == "zstd":
            codes = np.empty(count, np.uint8)
            decode_codes("zstd", plane.tobytes(), boxes, size, codes)
            coded.append(("codes", codes))
        else:
            coded.append((METHODS[method], plane))
    if at != len(data):
        raise TerseFileError(f"a group of arrays has {len(data) - at} bytes too many")
    out = np.empty(count * width, np.uint8)
    join_planes(coded, boxes, levels, out)
    return out


def may_repeat(data: Codes, width: int, low: Codes | None = None) -> bool:
    """Whether it is worth looking for numbers that return. `low`: the last plane, where
    it is there already.
    """
    if len(data) <= THOROUGH_BYTES * width:
        return True
    low = data[::width] & np.uint8(0x7F) if low is None else low
    return has_few_values(data, width) or _repeats(data.view(f"<u{width}"), low)


def _is_noise(counts: npt.NDArray[np.int64]) -> bool:
    """Whether a plane is as even as the low bits of a mantissa are."""
    fractions = counts[counts > 0] / counts.sum()
    return float(-(fractions * np.log2(fractions)).sum()) >= NOISE_FRACTION * np.log2(
        len(counts)
    )


def has_few_values(data: Codes, width: int) -> bool:
    """Whether elements return one by one, as in the matrix of a Fourier transform, in
    rows of few values or on a coarse grid.
    """
    if width == 2:
        return _on_a_grid(data.view("<u2"))
    if width < MIN_WIDE_BYTES:
        return False
    elements = data.view(f"<u{width}").astype(np.uint64)
    # By content, so that of equal elements all are kept or none.
    mixed = elements * np.uint64(0x9E3779B97F4A7C15)
    # The hash spreads values evenly, so a bound on it keeps about SAMPLE elements.
    kept = mixed[mixed <= np.uint64((2**64 - 1) // max(1, elements.size // SAMPLE))]
    return len(np.unique(kept)) < FEW_FRACTION * len(kept)


def _on_a_grid(elements: npt.NDArray[np.unsignedinteger]) -> bool:
    """Whether short elements take notably less as they are than as planes; single ones
    return in any array.
    """
    sample = elements[:: elements.size // (2 * SAMPLE) | 1]
    values, counts = np.unique(sample, return_counts=True)
    # A sample shows fewer values than there are (Miller and Madow's correction).
    whole = order0_bits(counts) + (len(values) - 1) / (2 * math.log(2))
    at, planes = 16, 0.0
    for levels in plane_levels(2, is_float=True):
        at -= levels.bit_length() - 1
        plane = (values >> at) & (levels - 1)
        planes += order0_bits(np.bincount(plane, weights=counts))
    return whole < GRID_FRACTION * planes


def _repeats(elements: npt.NDArray[np.unsignedinteger], low: Codes) -> bool:
    """Whether runs of elements occur again, by a sample that finds them wherever they
    stand.
    """
    # Windows begin where the content says so, hence at the same place of every
    # repetition.
    starts = np.flatnonzero(low[: elements.size - WINDOW + 1] == SAMPLE_MARK)
    # few or no such elements: they are not noise, and anything may be
    if len(starts) < 64:
        return True
    # again by content, so that both of two equal runs are kept or neither
    if len(starts) > 2 * SAMPLE:
        next_codes = low[starts + 1]
        starts = starts[next_codes < 128 * SAMPLE // len(starts)]
    # Products of odd numbers mix a window into one word; different windows meet in it
    # once in 2^64.
    mixed = np.zeros(len(starts), np.uint64)
    for place in range(WINDOW):
        mixed = (mixed ^ elements[starts + place].astype(np.uint64)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        mixed ^= mixed >> np.uint64(29)
    return len(np.unique(mixed)) < len(starts) * (1 - REPEATED_FRACTION)
