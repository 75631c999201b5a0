"""A program → the steps of the C source: which kernel, which buffers, and the constants
of each channel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tersify.export.c.c_steps import Buffer, Step, Steps
from tersify.export.c.constants import (
    Epilogue,
    Floats,
    Quant,
    in_numbers,
    in_steps,
    mean_steps,
)
from tersify.export.c.layer_constants import LayerConstants
from tersify.export.c.step_buffers import StepBuffers
from tersify.export.c.stored import stored
from tersify.runtime.portable.program import Program
from tersify.runtime.portable.sizes import Sizes, evaluated
from tersify.tensor import CompressedTensor

ONE_POSITION = (1, 1, 1, 1, 0, 0, 1, 1)  # the window of a linear layer


def steps_of(
    program: Program, tensors: Mapping[str, CompressedTensor | Tensor]
) -> Steps:
    """Every call must have a kernel in C; the error names the one that has none."""
    if program.length is not None:
        raise ValueError(
            f"a C source runs one length, and this plan runs {program.length.describe()}; save it without the second "
            "example"
        )
    if program.batch not in (None, 1):
        raise ValueError(
            f"a C source runs one item, and this plan is for a batch of {program.batch}"
        )
    if program.absolute:
        calls = tuple(evaluated(call, Sizes(1, 1)) for call in program.calls)
        program = replace(program, calls=calls, absolute=False)
    return _Lowering(program, tensors).run()


class _Lowering:
    """One method for each call that a program may hold, by its name."""

    def __init__(
        self, program: Program, tensors: Mapping[str, CompressedTensor | Tensor]
    ) -> None:
        self._program = program
        self._made = Steps()
        self._values = StepBuffers(self._made)
        self._constants = LayerConstants(program, tensors)

    def run(self) -> Steps:
        for name, *arguments in self._program.calls:
            handler = getattr(self, f"_{name}", None)
            if handler is None:
                raise ValueError(
                    f"the plan has the call {name!r}, which has no kernel in C; it stays with libtersify"
                )
            handler(*arguments)
        return self._made

    def _input(self, items: int, shape: list[int]) -> None:
        if items != 1:
            raise ValueError(
                "an input has several items for one of the batch, which a C source does not run"
            )
        self._made.inputs.append(
            self._values.add(Buffer((shape[0], shape[1], shape[2])))
        )

    def _quantize(self, value: int, *places: int) -> None:
        scale, low, high = (float(self._program.numbers[place]) for place in places)
        self._values.quantize(value, Quant(scale=scale, low=low, high=high))

    def _conv_i8(
        self,
        value: int,
        weight: int,
        epilogue: list[Any],
        other: int,
        output: list[int],
        mean: list[Any] | None,
    ) -> None:
        source = self._values.bytes(value)
        residual = None if other < 0 else self._values.bytes(other)
        assert source.quant is not None
        array, window, groups = self._constants.conv_weight(weight)
        rows = len(array)
        folded = self._constants.folded(
            epilogue, rows, shift_by=_signs(array) if source.quant.zero else None
        )
        made = self._constants.quant(output)
        before = residual.quant if residual is not None else None
        finished = (
            in_numbers(folded, before)
            if mean is not None
            else in_steps(folded, before, made)
        )
        shape = _conv_shape(source.shape, rows, window)
        target = Buffer((rows, 1, 1)) if mean is not None else Buffer(shape, made)
        self._add_conv(
            "conv_i8", source, residual, (array, window, groups), finished, target, mean
        )
        if mean is not None:
            steps = mean_steps(finished, array[0].size)
            self._made.steps[-1] = replace(self._made.steps[-1], mean_steps=steps)

    def _conv_f32(
        self,
        value: int,
        weight: int,
        epilogue: list[Any],
        other: int,
        mean: list[Any] | None,
    ) -> None:
        source = self._values.floats(value)
        residual = None if other < 0 else self._values.floats(other)
        array, window, groups = self._constants.conv_weight(weight)
        rows = len(array)
        shape = _conv_shape(source.shape, rows, window)
        target = Buffer((rows, 1, 1)) if mean is not None else Buffer(shape)
        finished = self._constants.folded(epilogue, rows)
        self._add_conv(
            "conv_f32",
            source,
            residual,
            (array, window, groups),
            finished,
            target,
            mean,
        )

    _conv = _conv_dense = _conv_f32

    def _conv_codes(
        self,
        value: int,
        weight: int,
        epilogue: list[Any],
        other: int,
        quantization: list[int],
    ) -> None:
        source = self._values.floats(value)
        residual = None if other < 0 else self._values.floats(other)
        rounded = Buffer(source.shape, self._constants.quant(quantization))
        self._made.steps.append(
            Step(kernel="to_bytes", reads=(source,), writes=rounded)
        )
        array, window, _ = self._constants.conv_weight(weight)
        rows = len(array)
        finished = self._constants.folded(epilogue, rows)
        target = Buffer(_conv_shape(source.shape, rows, window))
        self._add_conv(
            "conv_codes", rounded, residual, (array, window, 1), finished, target
        )

    def _add_conv(
        self,
        kernel: str,
        source: Buffer,
        residual: Buffer | None,
        weight: tuple[Floats, Sequence[int], int],
        finished: Epilogue,
        target: Buffer,
        mean: list[Any] | None = None,
    ) -> None:
        array, window, groups = weight
        ends = self._constants.mean(mean, len(array))
        self._made.steps.append(
            Step(
                kernel=kernel,
                reads=(source, *([] if residual is None else [residual])),
                writes=self._values.add(target),
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

    def _fold_max_pool(self, value: int, window: list[int], size: list[int]) -> None:
        self._max_pool(value, window, size)

    def _max_pool(self, value: int, window: list[int], size: list[int]) -> None:
        source = self._values.floats(value)
        rows = source.shape[0]
        target = self._values.add(Buffer((rows, size[0], size[1])))
        self._made.steps.append(
            Step(
                kernel="max_f32",
                reads=(source,),
                writes=target,
                rows=rows,
                window=tuple(window),
            )
        )

    def _global_mean(self, value: int, epilogue: list[Any]) -> None:
        source = self._values.floats(value)
        rows = source.shape[0]
        target = self._values.add(Buffer((rows, 1, 1)))
        ends = self._constants.mean(epilogue, rows)
        self._made.steps.append(
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
        source = self._values.floats(value)
        reads = (source,) if other < 0 else (source, self._values.floats(other))
        f = self._constants.folded(epilogue, source.shape[0])
        target = self._values.add(Buffer(source.shape))
        self._made.steps.append(
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
        source = self._values.floats(value)
        array = self._constants.linear_weight(weight, source.count, is_i8=False)
        rows, features = array.shape
        self._add_conv(
            "conv_f32",
            Buffer((features, 1, 1), root=source),
            None,
            (array.reshape(rows, features, 1, 1), ONE_POSITION, 1),
            self._constants.folded(epilogue, rows),
            Buffer((rows, 1, 1)),
        )

    def _linear_i8(self, value: int, weight: int, epilogue: list[Any]) -> None:
        source = self._values.floats(value)
        array = self._constants.linear_weight(weight, source.count, is_i8=True)
        rows, features = array.shape
        f = self._constants.folded(epilogue, rows)
        self._made.steps.append(
            Step(
                kernel="linear_i8",
                reads=(Buffer((features, 1, 1), root=source),),
                writes=self._values.add(Buffer((rows, 1, 1))),
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
        source = self._values.floats(value)
        target = self._values.add(Buffer((source.shape[0], size[0], size[1])))
        self._made.steps.append(
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
            self._values.floats(value)
            if self._values.as_it_lies(value).quant is None
            else self._values.as_it_lies(value)
        )
        if items != 1 or math.prod(shape) != source.count:
            raise ValueError(
                "a view that makes several items has no kernel in C; the network stays with libtersify"
            )
        self._values.add(
            Buffer((shape[0], shape[1], shape[2]), source.quant, root=source)
        )

    def _outputs(self, values: list[int]) -> None:
        self._made.outputs = [self._values.floats(value) for value in values]


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
