"""A program → the steps of the C source: which kernel, which buffers, and the constants
of each channel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tersify.export.c.constants import (
    BYTE_ZERO,
    Epilogue,
    Floats,
    Quant,
    in_numbers,
    in_steps,
    mean_steps,
)
from tersify.export.c.stored import Stored, stored
from tersify.runtime.portable.program import Program, vector
from tersify.runtime.portable.replay import weight_array
from tersify.tensor import CompressedTensor

CLAMP = 0


@dataclass(eq=False)
class Buffer:
    """A value: its shape, and whether it lies as bytes of a quantization."""

    shape: tuple[int, int, int]
    quant: Quant | None = None
    root: Buffer | None = None  # whose memory it is

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.count * (1 if self.quant is not None else 4)

    @property
    def memory(self) -> Buffer:
        return self if self.root is None else self.root.memory


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    kernel: str
    reads: tuple[Buffer, ...]
    writes: Buffer
    rows: int = 0
    window: tuple[int, ...] = (1, 1, 1, 1, 0, 0, 1, 1)
    groups: int = 1
    weights: Stored | None = None
    a: Floats | None = None
    b: Floats | None = None
    c: Floats | None = None
    low: float = -math.inf
    high: float = math.inf
    mean: tuple[Floats, Floats] | None = None
    mean_ends: tuple[float, float] = (-math.inf, math.inf)
    means: bool = False
    # of bytes: their sums are in whole steps
    mean_steps: Floats | None = None
    zero: int = 0


@dataclass(eq=False)
class Steps:
    """The whole network for one item."""

    inputs: list[Buffer] = field(default_factory=list)
    outputs: list[Buffer] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


def steps_of(
    program: Program, tensors: Mapping[str, CompressedTensor | Tensor]
) -> Steps:
    """Every call must have a kernel in C; the error names the one that has none."""
    if program.batch not in (None, 1):
        raise ValueError(
            f"a C source runs one item, and this plan is for a batch of {program.batch}"
        )
    return _Lowering(program, tensors).run()


class _Lowering:
    def __init__(
        self, program: Program, tensors: Mapping[str, CompressedTensor | Tensor]
    ) -> None:
        self.program = program
        self.tensors = tensors
        self.made = Steps()
        self._values: list[Buffer] = []
        self._quants: dict[int, Quant] = {}
        # the same numbers as bytes or as floats, by the value
        self._other: dict[int, Buffer] = {}

    def run(self) -> Steps:
        for name, *arguments in self.program.calls:
            handler = getattr(self, f"_{name}", None)
            if handler is None:
                raise ValueError(
                    f"the plan has the call {name!r}, which has no kernel in C; it stays with libtersify"
                )
            handler(*arguments)
        return self.made

    def _input(self, items: int, shape: list[int]) -> None:
        if items != 1:
            raise ValueError(
                "an input has several items for one of the batch, which a C source does not run"
            )
        self.made.inputs.append(self._value(Buffer((shape[0], shape[1], shape[2]))))

    def _quantize(self, value: int, *places: int) -> None:
        scale, low, high = (float(self.program.numbers[place]) for place in places)
        self._quants[value] = Quant(scale=scale, low=low, high=high)

    def _conv_i8(
        self,
        value: int,
        weight: int,
        epilogue: list[Any],
        other: int,
        output: list[int],
        mean: list[Any] | None,
    ) -> None:
        source = self._bytes(value)
        residual = None if other < 0 else self._bytes(other)
        assert source.quant is not None
        array, window, groups = self._conv_weight(weight)
        rows = len(array)
        folded = self._folded(
            epilogue, rows, shift_by=_signs(array) if source.quant.zero else None
        )
        scale, low, high = (np.float32(n) for n in vector(output, self.program.numbers))
        made = Quant(scale=float(scale), low=float(low), high=float(high))
        before = residual.quant if residual is not None else None
        finished = (
            in_numbers(folded, before)
            if mean is not None
            else in_steps(folded, before, made)
        )
        shape = _conv_shape(source.shape, rows, window)
        target = Buffer((rows, 1, 1)) if mean is not None else Buffer(shape, made)
        self._conv(
            "conv_i8", source, residual, array, window, groups, finished, mean, target
        )
        if mean is not None:
            steps = mean_steps(finished, array[0].size)
            self.made.steps[-1] = replace(self.made.steps[-1], mean_steps=steps)

    def _conv_f32(
        self,
        value: int,
        weight: int,
        epilogue: list[Any],
        other: int,
        mean: list[Any] | None,
    ) -> None:
        source = self._floats(value)
        residual = None if other < 0 else self._floats(other)
        array, window, groups = self._conv_weight(weight)
        rows = len(array)
        shape = _conv_shape(source.shape, rows, window)
        target = Buffer((rows, 1, 1)) if mean is not None else Buffer(shape)
        self._conv(
            "conv_f32",
            source,
            residual,
            array,
            window,
            groups,
            self._folded(epilogue, rows),
            mean,
            target,
        )

    _conv_dense = _conv_f32

    def _conv_codes(
        self,
        value: int,
        weight: int,
        epilogue: list[Any],
        other: int,
        quantization: list[int],
    ) -> None:
        source = self._floats(value)
        residual = None if other < 0 else self._floats(other)
        scale, low, high = (
            float(n) for n in vector(quantization, self.program.numbers)
        )
        rounded = Buffer(source.shape, Quant(scale=scale, low=low, high=high))
        self.made.steps.append(Step(kernel="to_bytes", reads=(source,), writes=rounded))
        array, window, _ = self._conv_weight(weight)
        rows = len(array)
        self._conv(
            "conv_codes",
            rounded,
            residual,
            array,
            window,
            1,
            self._folded(epilogue, rows),
            None,
            Buffer(_conv_shape(source.shape, rows, window)),
        )

    def _conv(self, *given: Any) -> None:
        if isinstance(given[0], int):  # the call of the plan
            self._conv_f32(*given)
            return
        kernel, source, residual, array, window, groups, finished, mean, target = given
        ends = self._mean(mean, len(array))
        self.made.steps.append(
            Step(
                kernel=kernel,
                reads=(source, *([] if residual is None else [residual])),
                writes=self._value(target),
                rows=len(array),
                window=tuple(window),
                groups=groups,
                weights=stored(array, whole=kernel == "conv_codes"),
                a=finished.a,
                b=finished.b,
                c=finished.c,
                low=finished.low,
                high=finished.high,
                means=mean is not None,
                zero=0 if source.quant is None else source.quant.zero,
                **ends,
            )
        )

    def _mean(self, mean: list[Any] | None, rows: int) -> dict[str, Any]:
        if mean is None:
            return {}
        folded = self._folded(mean, rows)
        return {"mean": (folded.a, folded.b), "mean_ends": (folded.low, folded.high)}

    def _fold_max_pool(self, value: int, window: list[int], size: list[int]) -> None:
        self._max_pool(value, window, size)

    def _max_pool(self, value: int, window: list[int], size: list[int]) -> None:
        source = self._floats(value)
        rows = source.shape[0]
        target = self._value(Buffer((rows, size[0], size[1])))
        self.made.steps.append(
            Step(
                kernel="max_f32",
                reads=(source,),
                writes=target,
                rows=rows,
                window=tuple(window),
            )
        )

    def _global_mean(self, value: int, epilogue: list[Any]) -> None:
        source = self._floats(value)
        rows = source.shape[0]
        target = self._value(Buffer((rows, 1, 1)))
        ends = self._mean(epilogue, rows)
        self.made.steps.append(
            Step(
                kernel="mean_f32",
                reads=(source,),
                writes=target,
                rows=rows,
                means=True,
                **ends,
            )
        )

    def _elementwise(
        self, value: int, other: int, multiply: bool, epilogue: list[Any]
    ) -> None:
        if multiply:
            raise ValueError(
                "products of two values have no kernel in C; the network stays with libtersify"
            )
        source = self._floats(value)
        reads = (source,) if other < 0 else (source, self._floats(other))
        f = self._folded(epilogue, source.shape[0])
        target = self._value(Buffer(source.shape))
        self.made.steps.append(
            Step(
                kernel="elementwise",
                reads=reads,
                writes=target,
                rows=source.shape[0],
                a=f.a,
                b=f.b,
                c=f.c,
                low=f.low,
                high=f.high,
            )
        )

    def _linear(self, value: int, weight: int, epilogue: list[Any]) -> None:
        source = self._floats(value)
        array = weight_array(
            self.program.weights[weight][1], self.tensors, self.program.numbers
        )
        if self.program.weights[weight][2] == 0:
            array = np.sign(array)
        rows, features = array.shape
        if source.count != features:
            raise ValueError(
                "a linear layer over several vectors has no kernel in C; it stays with libtersify"
            )
        f = self._folded(epilogue, rows)
        flat = Buffer((features, 1, 1), root=source)
        target = Buffer((rows, 1, 1))
        self._conv(
            "conv_f32",
            flat,
            None,
            array.reshape(rows, features, 1, 1),
            (1, 1, 1, 1, 0, 0, 1, 1),
            1,
            f,
            None,
            target,
        )

    def _linear_i8(self, value: int, weight: int, epilogue: list[Any]) -> None:
        source = self._floats(value)
        array = weight_array(
            self.program.weights[weight][1], self.tensors, self.program.numbers
        )
        if self.program.weights[weight][2]:
            array = np.sign(array)
        rows, features = array.shape
        if source.count != features:
            raise ValueError(
                "a linear layer over several vectors has no kernel in C; it stays with libtersify"
            )
        f = self._folded(epilogue, rows)
        self.made.steps.append(
            Step(
                kernel="linear_i8",
                reads=(Buffer((features, 1, 1), root=source),),
                writes=self._value(Buffer((rows, 1, 1))),
                rows=rows,
                weights=stored(array, whole=True),
                a=f.a,
                b=f.b,
                low=f.low,
                high=f.high,
            )
        )

    def _avg_pool(
        self, value: int, window: list[int], size: list[int], count_padding: bool
    ) -> None:
        source = self._floats(value)
        target = self._value(Buffer((source.shape[0], size[0], size[1])))
        self.made.steps.append(
            Step(
                kernel="mean_windows",
                reads=(source,),
                writes=target,
                rows=source.shape[0],
                window=tuple(window),
                zero=int(count_padding),
            )
        )

    def _view(self, value: int, items: int, shape: list[int]) -> None:
        source = (
            self._floats(value)
            if self._values[value].quant is None
            else self._values[value]
        )
        if items != 1 or math.prod(shape) != source.count:
            raise ValueError(
                "a view that makes several items has no kernel in C; the network stays with libtersify"
            )
        self._value(Buffer((shape[0], shape[1], shape[2]), source.quant, root=source))

    def _outputs(self, values: list[int]) -> None:
        self.made.outputs = [self._floats(value) for value in values]

    def _value(self, buffer: Buffer) -> Buffer:
        self._values.append(buffer)
        return buffer

    def _floats(self, value: int) -> Buffer:
        """The value as floats, converted where it lies as bytes."""
        return self._as(value, self._values[value].quant is None, None)

    def _bytes(self, value: int) -> Buffer:
        buffer = self._values[value]
        return self._as(
            value, buffer.quant is not None, buffer.quant or self._quants[value]
        )

    def _as(self, value: int, fits: bool, quant: Quant | None) -> Buffer:
        buffer = self._values[value]
        if fits:
            return buffer
        if value not in self._other:
            self._other[value] = Buffer(buffer.shape, quant)
            kernel = "to_floats" if quant is None else "to_bytes"
            self.made.steps.append(
                Step(kernel=kernel, reads=(buffer,), writes=self._other[value])
            )
        return self._other[value]

    def _conv_weight(self, number: int) -> tuple[Floats, list[int], int]:
        name, source, window, *rest = self.program.weights[number]
        array = weight_array(source, self.tensors, self.program.numbers)
        signs = name == "conv_i8" or (name == "conv" and rest[1] == 0)
        groups = int(rest[0]) if name in ("conv", "conv_i8") else 1
        return np.sign(array) if signs else array, window, groups

    def _folded(
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
            raise ValueError(
                "curved activations have no kernel in C; the network stays with libtersify"
            )
        numbers = self.program.numbers
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


def _signs(array: Floats) -> npt.NDArray[np.int64]:
    return np.sign(array).reshape(len(array), -1).sum(1).astype(np.int64)


def _conv_shape(
    shape: tuple[int, int, int], rows: int, window: list[int]
) -> tuple[int, int, int]:
    kh, kw, sh, sw, ph, pw, dh, dw = window
    _, h, w = shape
    return (
        rows,
        (h + 2 * ph - dh * (kh - 1) - 1) // sh + 1,
        (w + 2 * pw - dw * (kw - 1) - 1) // sw + 1,
    )
