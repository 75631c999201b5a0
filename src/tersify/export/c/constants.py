"""The constants of an epilogue as the kernels fold them: 32-bit floats, one rounding
after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
# activations by their numbers in a program; the others have no kernel in C
CLAMP, HARD_SWISH, LEAKY = 0, 6, 7
BYTE_ZERO = 128
# of sums that become means, as in byte_epilogue.cpp
STEP_BITS, LEAST_EXPONENT, MOST_MEAN, TOP_BYTE = 30, -90, 1e30, 255


@dataclass(frozen=True, kw_only=True, eq=False)
class Quant:
    scale: float
    low: float
    high: float

    @property
    def zero(self) -> int:
        return BYTE_ZERO if self.low < 0 else 0


@dataclass(frozen=True, eq=False)
class Epilogue:
    a: Floats
    b: Floats
    c: Floats
    low: float
    high: float
    activation: int = CLAMP


def in_numbers(f: Epilogue, residual: Quant | None) -> Epilogue:
    """For means and curves, which are of the numbers themselves."""
    scale = np.float32(0 if residual is None else residual.scale)
    c = f.c * scale
    b = f.b - c * np.float32(0 if residual is None else residual.zero)
    return replace(f, b=b, c=c)


def mean_steps(f: Epilogue, row_weights: int) -> Floats:
    """How many steps 1 has in a sum that becomes a mean, as the kernels have it
    (byte_epilogue.cpp): the largest number of a row has about 2³⁰.
    """
    a, b, c = (np.abs(part.astype(np.float64)) for part in (f.a, f.b, f.c))
    largest = a * TOP_BYTE * row_weights + b + c * TOP_BYTE
    if f.activation == CLAMP:
        largest = np.maximum(largest, max(f.low, -f.high))
    elif f.activation == LEAKY:
        largest = largest * max(1.0, abs(f.low))
    else:
        largest = np.maximum(largest, 1.0)
    if not (largest <= MOST_MEAN).all():
        raise ValueError(
            "an int8 convolution that ends in means has a constant that is not finite or too large for C"
        )
    exponents = np.maximum(np.frexp(largest)[1], LEAST_EXPONENT)
    return np.ldexp(np.float32(1.0), STEP_BITS - exponents).astype(np.float32)


def in_steps(f: Epilogue, residual: Quant | None, output: Quant) -> Epilogue:
    """Counted in steps of the output, whose rounding and clamp are one."""
    inverse, zero = np.float32(1.0) / np.float32(output.scale), np.float32(output.zero)
    c = f.c * (inverse * np.float32(0 if residual is None else residual.scale))
    b = f.b * inverse - c * np.float32(0 if residual is None else residual.zero)
    ends = [np.float32(end) * inverse + zero for end in (f.low, f.high)]
    low, high = np.float32(output.low) + zero, np.float32(output.high) + zero
    return Epilogue(
        f.a * inverse, b + zero, c, float(max(low, ends[0])), float(min(high, ends[1]))
    )


def bytes_behind(output: Quant) -> tuple[float, float, float, float]:
    """How a curve's numbers become steps of the output, and the ends of these."""
    inverse, zero = np.float32(1.0) / np.float32(output.scale), np.float32(output.zero)
    low, high = np.float32(output.low) + zero, np.float32(output.high) + zero
    return float(inverse), float(zero), float(low), float(high)
