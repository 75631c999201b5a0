"""The window of a convolution or a pool: kernel, stride, padding and dilation, each of
height and width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Window(NamedTuple):
    kernel_h: int
    kernel_w: int
    stride_h: int = 1
    stride_w: int = 1
    pad_h: int = 0
    pad_w: int = 0
    dilation_h: int = 1
    dilation_w: int = 1

    @classmethod
    def of(
        cls,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
    ) -> Window:
        """Of one or two dimensions; one is a width."""
        pairs = (
            _pair(kernel, 1),
            _pair(stride, 1),
            _pair(padding, 0),
            _pair(dilation, 1),
        )
        return cls(*(number for pair in pairs for number in pair))

    @property
    def taps(self) -> int:
        return self.kernel_h * self.kernel_w

    @property
    def kernel(self) -> tuple[int, int]:
        return self.kernel_h, self.kernel_w

    @property
    def stride(self) -> tuple[int, int]:
        return self.stride_h, self.stride_w

    @property
    def padding(self) -> tuple[int, int]:
        return self.pad_h, self.pad_w

    @property
    def dilation(self) -> tuple[int, int]:
        return self.dilation_h, self.dilation_w

    def whole_windows(self, size: Sequence[int]) -> tuple[int, ...]:
        """How many windows fit into a padded image of this size, along each axis."""
        axes = zip(
            size, self.kernel, self.stride, self.padding, self.dilation, strict=True
        )
        return tuple(
            (length + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
            for length, kernel, stride, pad, dilation in axes
        )

    @property
    def is_side_by_side(self) -> bool:
        """Windows that touch and neither overlap nor leave the image."""
        return (
            self.kernel == self.stride
            and self.padding == (0, 0)
            and self.dilation == (1, 1)
        )


def _pair(values: Sequence[int], missing: int) -> tuple[int, int]:
    return (values[0], values[1]) if len(values) == 2 else (missing, values[0])
