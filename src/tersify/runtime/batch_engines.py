"""One C++ engine a batch size, all on the same packed weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from torch import Tensor

Shape = tuple[int, int, int]


class BatchEngines:
    """Records operations on values of one image; every batch size that runs gets an engine of its own."""

    def __init__(self, module: ModuleType, isa: str, threads: int) -> None:
        self.module = module
        self.workspace = module.Workspace(isa, threads)
        self._steps: list[Callable[[Any, int], Any]] = []
        self._packed: list[Any] = []
        self._shapes: list[Shape] = []
        self._sizes: list[int] = []  # of the inputs
        self._outputs: list[int] = []
        self._engines: dict[int, Any] = {}

    def _add(self, shape: Shape, step: Callable[[Any, int], Any]) -> int:
        self._steps.append(step)
        self._shapes.append(shape)
        return len(self._shapes) - 1

    def _keep(self, packed: Any) -> Any:
        self._packed.append(packed)
        return packed

    def input(self, shape: Shape) -> int:
        self._sizes.append(math.prod(shape))
        return self._add(shape, lambda e, n: e.input(n, shape))

    def input_ids(self, count: int) -> int:
        self._sizes.append(count)
        return self._add((1, 1, count), lambda e, n: e.input_ids(n, count))

    def _made(self, value: int, rows: int, w: Sequence[int], mean: Any) -> tuple[Shape, tuple[int, int]]:
        _, h, width = self._shapes[value]
        size = (
            (h + 2 * w[4] - w[6] * (w[0] - 1) - 1) // w[2] + 1,
            (width + 2 * w[5] - w[7] * (w[1] - 1) - 1) // w[3] + 1,
        )
        return (rows, 1, 1) if mean is not None else (rows, *size), size

    def _kernels(self, weight: Tensor, w: Sequence[int]) -> Tensor:
        return weight.reshape(len(weight), -1, w[0], w[1]).contiguous()

    def conv(
        self,
        value: int,
        window: list[int],
        groups: int,
        weight: Tensor,
        kind: str,
        table: list[float],
        finish: Any,
        residual: int,
        mean: Any,
        half: bool,
    ) -> int:
        m = self.module
        shape, size = self._made(value, len(weight), window, mean)
        lane = m.Lane.F16 if half else m.Lane.F32
        packed = self._keep(
            m.pack_conv(
                self.workspace,
                self._kernels(weight, window),
                window,
                groups,
                getattr(m.ValueKind, kind.upper()),
                table,
                lane,
                size,
            )
        )
        return self._add(shape, lambda e, n: e.conv(value, packed, finish, residual, mean))

    def narrow_conv(
        self,
        value: int,
        window: list[int],
        groups: int,
        weight: Tensor,
        finish: Any,
        residual: int,
        output: tuple[float, float, float],
        mean: Any,
    ) -> int:
        shape, size = self._made(value, len(weight), window, mean)
        packed = self._keep(
            self.module.pack_conv_i8(self.workspace, self._kernels(weight, window), window, groups, size)
        )
        return self._add(shape, lambda e, n: e.conv_i8(value, packed, finish, residual, output, mean))

    def dense_conv(
        self,
        value: int,
        window: list[int],
        weight: Tensor,
        finish: Any,
        residual: int,
        quant: tuple[float, float, float],
    ) -> int:
        shape, _ = self._made(value, len(weight), window, None)
        packed = self._keep(self.module.pack_conv_2bit(self.workspace, self._kernels(weight, window), window))
        return self._add(shape, lambda e, n: e.conv_2bit(value, packed, finish, residual, quant))

    def quantize(self, value: int, scale: float, low: float, high: float) -> None:
        self._steps.append(lambda e, n: e.quantize(value, scale, low, high))

    def linear(self, value: int, weight: Tensor, kind: str, table: list[float], finish: Any) -> int:
        m = self.module
        packed = self._keep(m.pack_linear(self.workspace, weight, getattr(m.ValueKind, kind.upper()), table))
        return self._add(self._vectors(value, weight), lambda e, n: e.linear(value, packed, finish))

    def byte_linear(self, value: int, weight: Tensor, finish: Any) -> int:
        packed = self._keep(self.module.pack_linear_i8(self.workspace, weight))
        return self._add(self._vectors(value, weight), lambda e, n: e.linear_i8(value, packed, finish))

    def _vectors(self, value: int, weight: Tensor) -> Shape:
        return (1, math.prod(self._shapes[value]) // weight.shape[1], weight.shape[0])

    def pool(self, value: int, window: list[int], is_max: bool, count_padding: bool, shape: Shape) -> int:
        if is_max:
            return self._add(shape, lambda e, n: e.max_pool(value, window, shape[1:]))
        return self._add(shape, lambda e, n: e.avg_pool(value, window, shape[1:], count_padding))

    def fold_maxima(self, conv: int, window: list[int], shape: Shape) -> int:
        return self._add(shape, lambda e, n: e.fold_max_pool(conv, window, shape[1:]))

    def embedding(self, value: int, weight: Tensor, levels: list[float], scale: list[float]) -> int:
        packed = self._keep(self.module.pack_embedding(weight, levels, scale))
        return self._add((1, self._shapes[value][2], weight.shape[1]), lambda e, n: e.embedding(value, packed))

    def global_mean(self, value: int, finish: Any) -> int:
        return self._add((self._shapes[value][0], 1, 1), lambda e, n: e.global_mean(value, finish))

    def elementwise(self, a: int, b: int, multiply: bool, finish: Any) -> int:
        return self._add(self._shapes[a], lambda e, n: e.elementwise(a, b, multiply, finish))

    def concatenate(self, values: list[int]) -> int:
        channels = sum(self._shapes[value][0] for value in values)
        return self._add((channels, *self._shapes[values[0]][1:]), lambda e, n: e.concatenate(values))

    def view(self, value: int, shape: Shape) -> int:
        return self._add(shape, lambda e, n: e.view(value, n, shape))

    def softmax(self, value: int, count: int) -> int:
        return self._add(self._shapes[value], lambda e, n: e.softmax(value, count))

    def layer_norm(self, value: int, count: int, weight: list[float], bias: list[float], eps: float) -> int:
        return self._add(self._shapes[value], lambda e, n: e.layer_norm(value, count, weight, bias, eps))

    def outputs(self, values: list[int]) -> None:
        self._outputs = values

    def at(self, batch: int) -> Any:
        if batch not in self._engines:
            engine = self.module.Engine(self.workspace)
            for step in self._steps:
                step(engine, batch)
            engine.outputs(self._outputs)
            self._engines[batch] = engine
        return self._engines[batch]

    def _buffers(self, batch: int, inputs: list[int], outputs: list[int]) -> tuple[Any, Any]:
        made = [math.prod(self._shapes[value]) for value in self._outputs]
        return (
            [(x, batch * size) for x, size in zip(inputs, self._sizes, strict=True)],
            [(y, batch * size) for y, size in zip(outputs, made, strict=True)],
        )

    def run(self, batch: int, inputs: list[int], outputs: list[int]) -> bool:
        if not self.at(batch).run(*self._buffers(batch, inputs, outputs)):
            self.profile(batch, inputs, outputs)  # any numbers, as the kernels have them
        return True

    def profile(self, batch: int, inputs: list[int], outputs: list[int]) -> Any:
        return self.at(batch).profile(*self._buffers(batch, inputs, outputs))

    @property
    def weight_bytes(self) -> int:
        return sum(packed.resident_bytes for packed in self._packed)
