"""The weight of a transposed convolution, [channels, outputs, height, width], as the
plain one that kernels take: docs/reference/format.md, 10.5.

Row (output · sh + i) · sw + j makes phase i, j of the strides sh and sw. It has the taps
i, i + sh, … of the height and j, j + sw, … of the width, the last ones first, and zeros
where these are fewer than in other phases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


def with_phases(weight: Array, strides: Any, shape: Sequence[int]) -> Array:
    """Of the plain weight's shape; a ValueError where it cannot have it."""
    wide = _wide(weight.shape)
    match strides, shape:
        case [int(), int()], [_, _, taps_h, taps_w]:
            whole = (taps_h * strides[0], taps_w * strides[1])
        case _:
            raise ValueError(f"a weight of {shape} is turned by {strides!r}")
    rows = (wide[1] * strides[0] * strides[1], wide[0])
    if min(strides) < 1 or tuple(shape[:2]) != rows or (wide[2:] > whole):
        raise ValueError(f"a weight of {wide} with strides {strides} is not {shape}")
    margins = [(0, all_ - own) for all_, own in zip(whole, wide[2:], strict=True)]
    padded = np.pad(weight.reshape(wide), [(0, 0), (0, 0), *margins])
    parts = padded.reshape(*wide[:2], taps_h, strides[0], taps_w, strides[1])
    phases = parts.transpose(1, 3, 5, 0, 2, 4)[..., ::-1, ::-1]
    return np.ascontiguousarray(phases).reshape(tuple(shape))


def without_phases(
    array: Array, shape: Sequence[int]
) -> Iterator[tuple[list[int], Array]]:
    """The strides by which a weight of that shape may have become the plain one, each
    with that weight.
    """
    if array.ndim != 4 or len(shape) not in (3, 4):
        return
    channels, outputs, height, width = _wide(shape)
    rows, own_channels, taps_h, taps_w = array.shape
    if own_channels != channels or rows % outputs:
        return
    steps = rows // outputs
    for step in range(1, steps + 1):
        strides = [step, steps // step]
        whole = (taps_h * strides[0], taps_w * strides[1])
        if steps % step or whole[0] < height or whole[1] < width:
            continue
        parts = array.reshape(outputs, *strides, channels, taps_h, taps_w)
        padded = parts[..., ::-1, ::-1].transpose(3, 0, 4, 1, 5, 2)
        padded = padded.reshape(channels, outputs, *whole)
        weight = np.ascontiguousarray(padded[:, :, :height, :width])
        if np.array_equal(with_phases(weight, strides, array.shape), array):
            yield strides, weight


def _wide(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """A width alone is one of height 1."""
    channels, outputs, *height, width = shape
    return channels, outputs, height[0] if height else 1, width
