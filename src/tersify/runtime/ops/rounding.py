"""What int8 and fp16 activations round to, in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tersify.runtime.plan import Quant


def quantized(x: Tensor, quant: Quant) -> Tensor:
    """The nearest numbers that the quantization can express."""
    return (x / quant.scale).round().clamp(quant.low, quant.high) * quant.scale


def as_fp16(x: Tensor) -> Tensor:
    """The nearest 16-bit floats; beyond ±65504 they are infinite."""
    return x.half().to(x.dtype)


def rounded_vectors(x: Tensor) -> Tensor:
    """Each vector rounded to 127 steps up and down of its own largest number; NaN and
    infinity spoil their vector.
    """
    # The smallest normal number keeps a vector of zeros from dividing by zero.
    top = x.abs().amax(-1, keepdim=True)
    scale = (top / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return (x / scale).round() * scale
