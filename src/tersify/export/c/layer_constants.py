"""Weights and epilogues of a program as the arrays that the C source holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tersify.export.c.constants import (
    BYTE_ZERO,
    CLAMP,
    HARD_SWISH,
    LEAKY,
    Epilogue,
    Floats,
    Quant,
)
from tersify.runtime.portable.program import Program, vector
from tersify.runtime.portable.replay import weight_array
from tersify.tensor import CompressedTensor

# By their numbers in a program.
CURVES = {1: "GELU", 2: "GELU by tanh", 3: "SiLU", 4: "sigmoid", 5: "tanh"}


class LayerConstants:
    """Reads them by their numbers in the program."""

    def __init__(
        self, program: Program, tensors: Mapping[str, CompressedTensor | Tensor]
    ) -> None:
        self._program, self._tensors = program, tensors

    def quant(self, places: list[int]) -> Quant:
        scale, low, high = self.vector(places)
        return Quant(scale=float(scale), low=float(low), high=float(high))

    def conv_weight(self, number: int) -> tuple[Floats, list[int], int]:
        """The weight, its window, and its groups."""
        name, source, window, *rest = self._program.weights[number]
        array = weight_array(source, self._tensors, self._program.numbers)
        signs = name == "conv_i8" or (name == "conv" and rest[1] == 0)
        groups = int(rest[0]) if name in ("conv", "conv_i8") else 1
        return np.sign(array) if signs else array, window, groups

    def embedding(self, number: int) -> tuple[Floats, Floats | None]:
        """The table, and what each of its rows is multiplied with."""
        _, source, _, scale = self._program.weights[number]
        array = weight_array(source, self._tensors, self._program.numbers)
        factors = self.vector(scale)
        return array, factors if len(factors) else None

    def vector(self, places: list[int]) -> Floats:
        return vector(places, self._program.numbers)

    def number(self, place: int) -> float:
        return float(self._program.numbers[place])

    def linear_weight(self, number: int, *, is_i8: bool) -> Floats:
        _, source, kind, *_ = self._program.weights[number]
        array = weight_array(source, self._tensors, self._program.numbers)
        # A layer of floats gives its kind, where 0 means signs; one of int8 gives
        # whether it holds signs.
        return np.sign(array) if bool(kind) == is_i8 else array

    def mean(self, epilogue: list[Any] | None, rows: int) -> dict[str, Any]:
        """Of a step that also takes the mean of its positions: what finishes the mean."""
        if epilogue is None:
            return {}
        folded = self.folded(epilogue, rows)
        return {
            "mean": (folded.a, folded.b),
            "mean_activation": folded.activation,
            "mean_ends": (folded.low, folded.high),
        }

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
        scale, shift, scale2, shift2 = map(self.vector, epilogue[:4])
        one, nothing = np.ones(rows, np.float32), np.zeros(rows, np.float32)
        a, b = (scale if len(scale) else one), (shift if len(shift) else nothing)
        if shift_by is not None:
            b = b - (a.astype(np.float64) * BYTE_ZERO * shift_by).astype(np.float32)
        c = one
        if len(scale2) or len(shift2):
            c = scale2 if len(scale2) else one
            a, b = a * c, b * c + (shift2 if len(shift2) else nothing)
        activation, low, high = self.activation(epilogue)
        return Epilogue(a, b, c, low, high, activation)

    def activation(self, epilogue: list[Any]) -> tuple[int, float, float]:
        """Its number, and its ends; a negative number times the low one where it is
        leaky.
        """
        activation, low, high = epilogue[4:]
        if activation not in (CLAMP, HARD_SWISH, LEAKY):
            name = CURVES.get(activation, f"the activation {activation}")
            raise ValueError(
                f"{name} has no kernel in C; the network stays with libtersify"
            )
        return activation, self.number(low), self.number(high)
