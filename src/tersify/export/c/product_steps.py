"""Convolutions and linear layers as steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tersify.export.c.c_steps import Buffer, Shape
from tersify.export.c.constants import (
    CLAMP,
    Epilogue,
    Floats,
    bytes_behind,
    in_numbers,
    in_steps,
    mean_steps,
)
from tersify.export.c.step_maker import StepMaker
from tersify.export.c.stored import stored

ONE_POSITION = (1, 1, 1, 1, 0, 0, 1, 1)  # the window of a linear layer


class ProductSteps(StepMaker):
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
        more: dict[str, Any] = {}
        if mean is not None:
            finished = in_numbers(folded, before)
            more["mean_steps"] = mean_steps(finished, array[0].size)
        elif folded.activation == CLAMP:
            finished = in_steps(folded, before, made)
        else:
            finished = in_numbers(folded, before)
            more["bytes_behind"] = bytes_behind(made)
        shape = _conv_shape(source.shape, rows, window)
        items = source.items
        target = Buffer(shape, made, items=items)
        if mean is not None:
            target = Buffer((rows, 1, 1), items=items)
        kept = (array, window, groups)
        self._add_conv(
            "conv_i8", source, residual, kept, finished, target, mean, **more
        )

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
        target = Buffer((rows, 1, 1) if mean is not None else shape, items=source.items)
        finished = self._constants.folded(epilogue, rows)
        kept = (array, window, groups)
        self._add_conv("conv_f32", source, residual, kept, finished, target, mean)

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
        quant, items = self._constants.quant(quantization), source.items
        rounded = Buffer(source.shape, quant, items=items)
        self._step("to_bytes", (source,), rounded)
        array, window, _ = self._constants.conv_weight(weight)
        rows = len(array)
        finished = self._constants.folded(epilogue, rows)
        target = Buffer(_conv_shape(source.shape, rows, window), items=items)
        kept = (array, window, 1)
        self._add_conv("conv_codes", rounded, residual, kept, finished, target)

    def _add_conv(
        self,
        kernel: str,
        source: Buffer,
        residual: Buffer | None,
        weight: tuple[Floats, Sequence[int], int],
        finished: Epilogue,
        target: Buffer,
        mean: list[Any] | None = None,
        **more: Any,
    ) -> None:
        array, window, groups = weight
        self._step(
            kernel,
            (source, *([] if residual is None else [residual])),
            self._values.add(target),
            rows=len(array),
            window=tuple(window),
            groups=groups,
            weights=stored(array, whole=kernel == "conv_codes"),
            a=finished.a,
            b=finished.b,
            c=finished.c,
            activation=finished.activation,
            low=finished.low,
            high=finished.high,
            means=mean is not None,
            zero=0 if source.quant is None else source.quant.zero,
            **self._constants.mean(mean, len(array)),
            **more,
        )

    def _linear(self, value: int, weight: int, epilogue: list[Any]) -> None:
        array = self._constants.linear_weight(weight, is_i8=False)
        rows, features = array.shape
        vectors, made = self._vectors(value, features, rows)
        f = self._constants.folded(epilogue, rows)
        self._step(
            "conv_f32",
            (vectors,),
            made,
            rows=rows,
            window=ONE_POSITION,
            weights=stored(array),
            a=f.a,
            b=f.b,
            activation=f.activation,
            low=f.low,
            high=f.high,
        )

    def _linear_i8(self, value: int, weight: int, epilogue: list[Any]) -> None:
        array = self._constants.linear_weight(weight, is_i8=True)
        rows, features = array.shape
        vectors, made = self._vectors(value, features, rows)
        f = self._constants.folded(epilogue, rows)
        self._step(
            "linear_i8",
            (vectors,),
            made,
            rows=rows,
            weights=stored(array, whole=True),
            a=f.a,
            b=f.b,
            activation=f.activation,
            low=f.low,
            high=f.high,
        )

    def _vectors(self, value: int, features: int, rows: int) -> tuple[Buffer, Buffer]:
        """What a layer reads and writes, each vector as an item of its own."""
        source = self._values.floats(value)
        each, count = source.item_count // features, source.count // features
        made = self._values.add(Buffer((1, each, rows), items=source.items))
        return (
            Buffer((features, 1, 1), root=source, items=count),
            Buffer((rows, 1, 1), root=made, items=count),
        )


def _signs(array: Floats) -> npt.NDArray[np.int64]:
    return np.sign(array).reshape(len(array), -1).sum(1).astype(np.int64)


def _conv_shape(shape: Shape, rows: int, window: Sequence[int]) -> Shape:
    kh, kw, sh, sw, ph, pw, dh, dw = window
    _, h, w = shape
    return (
        rows,
        (h + 2 * ph - dh * (kh - 1) - 1) // sh + 1,
        (w + 2 * pw - dw * (kw - 1) - 1) // sw + 1,
    )
