"""The plan's nodes → one C++ engine a run of lowered nodes."""

from __future__ import annotations

import importlib
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.batch_engines import BatchEngines
from tersify.runtime.plan import Finish, Node, Quant
from tersify.runtime.weights import Weight

ISA_VARIABLE = "TERSIFY_ISA"
MAX_LEVELS = 255  # of an embedding, besides zero: above, its numbers are kept as they are


@lru_cache(maxsize=1)
def extension() -> ModuleType | None:
    """The compiled kernels, or None after one warning."""
    try:
        return importlib.import_module("tersify._runtime")
    except ImportError as error:
        warnings.warn(
            f"tersify's compiled kernels are missing ({error}); plans run in plain torch. "
            "Reinstall tersify with a C++ compiler at hand.",
            RuntimeWarning,
            stacklevel=3,
        )
        return None


def chosen_isa(module: ModuleType) -> str:
    """The best instruction set of this CPU, or the one that TERSIFY_ISA names."""
    names: list[str] = module.isas()
    wanted = os.environ.get(ISA_VARIABLE)
    if not wanted:
        return names[-1]
    if wanted not in names:
        raise ValueError(f"{ISA_VARIABLE}={wanted!r}: this CPU has kernels for {', '.join(names)}")
    return wanted


def engine_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """(channels, height, width) of one image's shape; the bytes stay as they are."""
    if len(shape) == 1:
        return (shape[0], 1, 1)
    return (shape[0], math.prod(shape[1:-1]), shape[-1])


class EngineBuilder:
    """Adds nodes to a C++ engine and remembers which of its values is which."""

    def __init__(self, module: ModuleType, threads: int, quants: Mapping[str, Quant]) -> None:
        self._module = module
        self._quants = quants
        self.engine: Any = BatchEngines(module, chosen_isa(module), threads)
        self._values: dict[str, int] = {}
        self._shapes: dict[int, tuple[int, int, int]] = {}
        self.makers: dict[int, str] = {}  # the node behind every value of the engine

    def input(self, name: str, shape: Sequence[int], *, numbers: bool = False) -> None:
        """`numbers`: 64-bit integers."""
        sizes = (1, 1, math.prod(shape)) if numbers else engine_shape(shape)
        value = self.engine.input_ids(sizes[2]) if numbers else self.engine.input(sizes)
        self._remember(name, value, sizes)

    def add(self, node: Node) -> None:
        value, shape = _ADDERS[node.kind](self, node)
        self.makers[value] = node.name
        wanted = engine_shape(node.shape)
        if shape != wanted:
            value = self.engine.view(value, wanted)
            self.makers[value] = node.name
        self._remember(node.name, value, wanted)

    def outputs(self, names: Sequence[str]) -> None:
        self.engine.outputs([self._values[name] for name in names])

    def _remember(self, name: str, value: int, shape: tuple[int, int, int]) -> None:
        self._values[name] = value
        self._shapes[value] = shape

    def _source(self, node: Node, number: int = 0) -> int:
        return self._values[node.inputs[number]]

    def _finish(self, f: Finish, channels: int) -> Any:
        def floats(constant: Tensor | None, default: float, wanted: bool) -> list[float]:
            if constant is None:
                return [default] * channels if wanted else []
            return constant.to(torch.float32).tolist()

        activations = self._module.Activation
        first = f.scale is not None or f.shift is not None
        second = f.scale2 is not None or f.shift2 is not None
        return self._module.Epilogue(
            floats(f.scale, 1.0, first),
            floats(f.shift, 0.0, first),
            floats(f.scale2, 1.0, second),
            floats(f.shift2, 0.0, second),
            {"gelu": activations.GELU, "silu": activations.SILU}.get(f.act, activations.CLAMP),
            f.low,
            f.high,
        )

    def _conv(self, node: Node) -> tuple[int, tuple[int, int, int]]:
        assert node.weight is not None
        weight = node.weight
        rows = weight.values.shape[0]
        if node.options.get("int8", False):
            if node.two_bit:
                return self._with_pool_behind(node, self._dense_conv(node, rows))
            return self._with_pool_folded(node, self._narrow_conv(node, rows))
        value = self.engine.conv(
            self._source(node),
            list(node.options["window"]),
            node.options["groups"],
            weight.values.contiguous(),
            weight.kind,
            [] if weight.table is None else weight.table.tolist(),
            self._finish(node.finish, rows),
            -1 if node.residual is None else self._values[node.residual],
            self._mean_finish(node, rows),
            bool(node.options.get("fp16", False)),
        )
        return self._with_pool_folded(node, value)

    def _narrow_conv(self, node: Node, rows: int) -> int:
        assert node.weight is not None
        for name in node.reads:
            q = self._quants[name]
            self.engine.quantize(self._values[name], q.scale, q.low, q.high)
        output = self._quants[node.name]
        value: int = self.engine.narrow_conv(
            self._source(node),
            list(node.options["window"]),
            node.options["groups"],
            node.weight.values.contiguous(),
            self._finish_of_steps(node, rows),
            -1 if node.residual is None else self._values[node.residual],
            (output.scale, output.low, output.high),
            self._mean_finish(node, rows),
        )
        return value

    def _mean_finish(self, node: Node, rows: int) -> Any:
        return self._finish(node.pooled.finish, rows) if node.pooled and node.pooled.is_mean else None

    def _with_pool_behind(self, node: Node, value: int) -> tuple[int, tuple[int, int, int]]:
        """The pool as an operation of its own."""
        shape = engine_shape(node.shape)
        if node.pooled is None:
            return value, shape
        self.makers[value] = node.name
        if node.pooled.window is not None:
            return self.engine.pool(value, list(node.pooled.window), True, True, shape), shape
        channels = node.shape[0]
        return self.engine.global_mean(value, self._finish(node.pooled.finish, channels)), (channels, 1, 1)

    def _with_pool_folded(self, node: Node, value: int) -> tuple[int, tuple[int, int, int]]:
        """Maxima become part of the convolution; a mean is part of it already."""
        shape = engine_shape(node.shape)
        if node.pooled is None or node.pooled.window is None:
            return value, shape if node.pooled is None else (node.shape[0], 1, 1)
        self.makers[value] = node.name
        return self.engine.fold_maxima(value, list(node.pooled.window), shape), shape

    def _dense_conv(self, node: Node, rows: int) -> int:
        assert node.weight is not None
        given = self._quants[node.inputs[0]]
        value: int = self.engine.dense_conv(
            self._source(node),
            list(node.options["window"]),
            node.weight.values.contiguous(),
            self._finish_of_steps(node, rows),
            -1 if node.residual is None else self._values[node.residual],
            (given.scale, given.low, given.high),
        )
        return value

    def _finish_of_steps(self, node: Node, rows: int) -> Any:
        """The sums count whole steps of the input; its scale makes them numbers again."""
        ones = torch.ones(rows, dtype=torch.float64)
        scale = (ones if node.finish.scale is None else node.finish.scale) * self._quants[node.inputs[0]].scale
        return self._finish(replace(node.finish, scale=scale), rows)

    def _linear(self, node: Node) -> tuple[int, tuple[int, int, int]]:
        assert node.weight is not None
        weight = node.weight
        rows, features = weight.values.shape
        if node.options.get("int8", False):
            value = self._byte_linear(node, weight, rows)
        else:
            value = self.engine.linear(
                self._source(node),
                weight.values.contiguous(),
                weight.kind,
                [] if weight.table is None else weight.table.tolist(),
                self._finish(node.finish, rows),
            )
        per_image = math.prod(self._shapes[self._source(node)]) // features
        return value, (1, per_image, rows)

    def _byte_linear(self, node: Node, weight: Weight, rows: int) -> int:
        step = 1.0 if weight.kind == "sign" else weight.step
        scale = torch.ones(rows, dtype=torch.float64) if node.finish.scale is None else node.finish.scale
        finish = node.finish if weight.kind == "sign" else replace(node.finish, scale=scale * step)
        steps = (weight.values.double() / step).round().float().contiguous()
        value: int = self.engine.byte_linear(self._source(node), steps, self._finish(finish, rows))
        return value

    def _embedding(self, node: Node) -> tuple[int, tuple[int, int, int]]:
        assert node.weight is not None
        weight = node.weight
        table = [-1.0, 1.0] if weight.kind == "sign" else [] if weight.table is None else weight.table.tolist()
        if len(table) > MAX_LEVELS:
            table = []
        scale = [] if weight.row_scale is None else weight.row_scale.tolist()
        value = self.engine.embedding(self._source(node), weight.values.contiguous(), table, scale)
        return value, (1, math.prod(node.shape[:-1]), node.shape[-1])

    def _pool(self, node: Node) -> tuple[int, tuple[int, int, int]]:
        o = node.options
        shape = engine_shape(node.shape)
        return self.engine.pool(self._source(node), list(o["window"]), o["max"], o["count_padding"], shape), shape

    def _mean(self, node: Node) -> tuple[int, tuple[int, int, int]]:
        channels = node.shape[0]
        return self.engine.global_mean(self._source(node), self._finish(node.finish, channels)), (channels, 1, 1)

    def _pointwise(self, node: Node) -> tuple[int, tuple[int, int, int]]:
        other = -1 if node.residual is None else self._values[node.residual]
        finish = self._finish(node.finish, node.shape[0])
        return self.engine.elementwise(self._source(node), other, node.multiply, finish), engine_shape(node.shape)

    def _cat(self, node: Node) -> tuple[int, tuple[int, int, int]]:
        return self.engine.concatenate([self._values[name] for name in node.inputs]), engine_shape(node.shape)

    def _view(self, node: Node) -> tuple[int, tuple[int, int, int]]:
        shape = engine_shape(node.shape)
        return self.engine.view(self._source(node), shape), shape

    def _softmax(self, node: Node) -> tuple[int, tuple[int, int, int]]:
        return self.engine.softmax(self._source(node), node.shape[-1]), engine_shape(node.shape)

    def _layer_norm(self, node: Node) -> tuple[int, tuple[int, int, int]]:
        weight, bias = (
            [] if t is None else t.to(torch.float32).tolist() for t in (node.options["weight"], node.options["bias"])
        )
        value = self.engine.layer_norm(self._source(node), node.shape[-1], weight, bias, node.options["eps"])
        return value, engine_shape(node.shape)


_ADDERS = {
    "conv": EngineBuilder._conv,
    "linear": EngineBuilder._linear,
    "embedding": EngineBuilder._embedding,
    "pool": EngineBuilder._pool,
    "mean": EngineBuilder._mean,
    "pointwise": EngineBuilder._pointwise,
    "cat": EngineBuilder._cat,
    "view": EngineBuilder._view,
    "softmax": EngineBuilder._softmax,
    "layer_norm": EngineBuilder._layer_norm,
}
