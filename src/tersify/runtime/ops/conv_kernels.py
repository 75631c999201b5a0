"""The kernel families of a convolution."""

from __future__ import annotations

import enum


class ConvKernel(enum.Enum):
    """Which kernels run it; see docs/explanation/kernels.md."""

    LISTS_F32 = "lists"
    DENSE_F32 = "dense"
    LISTS_F16 = "lists, fp16 activations"
    LISTS_I8 = "lists, int8 activations"
    CODES_I8 = "dense codes, int8 activations"
    BITS = "bits"
    TORCH = "dense, in torch"
