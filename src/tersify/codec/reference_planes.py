"""Planes of arrays in numpy: slow, and only where the compiled coders are missing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.uint8]


def split_planes(
    elements: npt.NDArray[np.unsignedinteger], levels: Sequence[int]
) -> list[Codes]:
    """One byte per element for each plane, most significant first."""
    shift = 8 * elements.dtype.itemsize
    planes = []
    for size in levels:
        # Alphabets are powers of two, so this is the plane's width in bits.
        shift -= size.bit_length() - 1
        planes.append(
            (
                (elements >> elements.dtype.type(shift)) & elements.dtype.type(size - 1)
            ).astype(np.uint8)
        )
    return planes


def join_planes(
    planes: Sequence[Codes], levels: Sequence[int], out: npt.NDArray[np.unsignedinteger]
) -> None:
    out[:] = 0
    shift = 8 * out.dtype.itemsize
    for plane, size in zip(planes, levels, strict=True):
        shift -= size.bit_length() - 1
        out |= plane.astype(out.dtype) << out.dtype.type(shift)
