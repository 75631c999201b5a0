"""Weights and epilogues of a program as the arrays that the C source holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tersify.export.c.constants import BYTE_ZERO, Epilogue, Floats, Quant
from tersify.runtime.portable.program import Program, vector
from tersify.runtime.portable.replay import weight_array
from tersify.tensor import CompressedTensor

CLAMP = 0
# By their numbers in a program.
NAMES = {
    1: "GELU",
    2: "GELU by tanh",
    3: "SiLU",
    4: "sigmoid",
    5: "tanh",
    6: "hard swish",
    7: "leaky ReLU",
}


class LayerConstants:
    """Reads them by their numbers in the program."""

    def __init__(
        self, program: Program, tensors: Mapping[str, CompressedTensor | Tensor]
    ) -> None:
        self._program, self._tensors = program, tensors

    def quant(self, places: list[int]) -> Quant:
        scale, low, high = vector(places, self._program.numbers)
        return Quant(scale=float(scale), low=float(low), high=float(high))

    def conv_weight(self, number: int) -> tuple[Floats, list[int], int]:
        """The weight, its window, and its groups."""
        name, source, window, *rest = self._program.weights[number]
        array = weight_array(source, self._tensors, self._program.numbers)
        signs = name == "conv_i8" or (name == "conv" and rest[1] == 0)
        groups = int(rest[0]) if name in ("conv", "conv_i8") else 1
        return np.sign(array) if signs else array, window, groups

    def linear_weight(self, number: int, features: int, *, is_i8: bool) -> Floats:
        """The weight of a layer that takes one vector of so many features."""
        _, source, kind, *_ = self._program.weights[number]
        array = weight_array(source, self._tensors, self._program.numbers)
        if array.shape[1] != features:
            raise ValueError(
                "a linear layer over several vectors has no kernel in C; it stays with libtersify"
            )
        # A layer of floats gives its kind, where 0 means signs; one of int8 gives
        # whether it holds signs.
        return np.sign(array) if bool(kind) == is_i8 else array

    def mean(self, epilogue: list[Any] | None, rows: int) -> dict[str, Any]:
        """Of a step that also takes the mean of its positions: what finishes the mean."""
        if epilogue is None:
            return {}
        folded = self.folded(epilogue, rows)
        return {"mean": (folded.a, folded.b), "mean_ends": (folded.low, folded.high)}

    def folded(
        self,
        epilogue: list[Any],
        rows: int,
        *,
        shift_by: npt.NDArray[np.int64] | None = None,
    ) -> Epilogue:
        """sum · a + b + other · c, in the arithmetic of the kernels: 32-bit floats, one
        rounding after the other.
        """
        *parts, activation, low, high = epilogue
        if activation != CLAMP:
            name = NAMES.get(activation, f"the activation {activation}")
            raise ValueError(
                f"{name} has no kernel in C; the network stays with libtersify"
            )
        numbers = self._program.numbers
        scale, shift, scale2, shift2 = (vector(part, numbers) for part in parts)
        one, nothing = np.ones(rows, np.float32), np.zeros(rows, np.float32)
        a, b = (scale if len(scale) else one), (shift if len(shift) else nothing)
        if shift_by is not None:
            b = b - (a.astype(np.float64) * BYTE_ZERO * shift_by).astype(np.float32)
        c = one
        if len(scale2) or len(shift2):
            c = scale2 if len(scale2) else one
            a, b = a * c, b * c + (shift2 if len(shift2) else nothing)
        return Epilogue(a, b, c, float(numbers[low]), float(numbers[high]))
