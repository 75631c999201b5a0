"""A program run by the compiled kernels from Python, as libtersify runs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tersify.codec.errors import TerseFileError
from tersify.runtime.extension import chosen_isa, extension
from tersify.runtime.portable.phases import with_phases
from tersify.runtime.portable.program import Plain, Program, sizes_of, vector
from tersify.runtime.portable.signatures import (
    ACTIVATIONS,
    CALLS,
    CHOICES,
    EPILOGUE_VECTORS,
    MAKES_NOTHING,
    PACKS,
)
from tersify.runtime.portable.sizes import Sizes, evaluated
from tersify.tensor import CompressedTensor

DTYPES = {"float32": torch.float32, "int64": torch.int64}


class Replay:
    """The weights of a program packed once, and an engine for each batch."""

    def __init__(
        self,
        program: Program,
        tensors: Mapping[str, CompressedTensor | Tensor],
        *,
        module: Any = None,
        threads: int = 1,
    ) -> None:
        self.program = program
        self._module: Any = extension() if module is None else module
        if self._module is None:
            raise ValueError(
                "a plan runs on compiled kernels, and they are not built here"
            )
        self._workspace = self._module.Workspace(
            chosen_isa(self._module), threads, in_order=program.precision == "int8"
        )
        try:
            self._weights = [self._pack(weight, tensors) for weight in program.weights]
        except (KeyError, IndexError, TypeError, ValueError) as problem:
            raise TerseFileError(
                f"a weight of the plan is not as docs/reference/format.md says: {problem}"
            ) from None
        self._engines: dict[Sizes, Any] = {}

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        sizes = self._sizes(inputs)
        if sizes not in self._engines:
            try:
                self._engines[sizes] = self._engine(sizes)
            except (KeyError, IndexError, TypeError, ValueError) as problem:
                raise TerseFileError(
                    f"a call of the plan is not as docs/reference/format.md says: {problem}"
                ) from None
        outputs = [torch.empty(sizes_of(port, sizes)) for port in self.program.outputs]
        given = [x.contiguous() for x in inputs]
        if not self._engines[sizes].run(_buffers(given), _buffers(outputs)):
            raise ValueError(
                "an input, or a curve of one, is NaN or infinite, which kernels that "
                "skip zeros do not take"
            )
        return outputs

    def _sizes(self, inputs: Sequence[Tensor]) -> Sizes:
        ports = self.program.inputs
        batch = self.program.batch or (
            inputs[0].shape[0] if inputs and inputs[0].ndim else 1
        )
        sizes = Sizes(batch, self._length(inputs))
        for x, port in zip(inputs, ports, strict=True):
            wanted = sizes_of(port, sizes)
            if tuple(x.shape) != wanted or x.dtype != DTYPES.get(port.dtype):
                raise ValueError(
                    f"{port.name!r} takes {port.dtype} {wanted}, got {x.dtype} {tuple(x.shape)}"
                )
        return sizes

    def _length(self, inputs: Sequence[Tensor]) -> int:
        """Of the first axis whose size is free."""
        if self.program.length is None:
            return 1
        for x, port in zip(inputs, self.program.inputs, strict=True):
            for axis, size in enumerate(port.shape[: x.ndim]):
                if isinstance(size, dict):
                    self.program.length.check(x.shape[axis])
                    return x.shape[axis]
        raise TerseFileError("the plan has a free length, and no input with it")

    def _engine(self, sizes: Sizes) -> Any:
        engine = self._module.Engine(self._workspace)
        values: list[int] = []
        fixed = self.program.absolute or self.program.batch is not None
        scale = 1 if fixed else sizes.batch
        for name, *plain in self.program.calls:
            given = evaluated(plain, sizes) if self.program.absolute else plain
            kinds = CALLS[name]
            real = [
                self._real(kind, x, values, scale)
                for kind, x in zip(kinds, given, strict=True)
            ]
            made = getattr(engine, name)(*real)
            if name not in MAKES_NOTHING:
                values.append(made)
        return engine

    def _real(self, kind: str, x: Any, values: Sequence[int], scale: int) -> Any:
        if kind == "value":
            return -1 if x == -1 else values[x]
        if kind == "values":
            return [values[value] for value in x]
        if kind == "items":
            return x * scale
        if kind in CHOICES:
            type_name, names = CHOICES[kind]
            return getattr(getattr(self._module, type_name), names[x])
        if kind in _REAL:
            return _REAL[kind](self, x)
        return tuple(x) if isinstance(x, list) else x

    def weight(self, place: int) -> Any:
        return self._weights[place]

    def numbers(self, plain: Plain) -> list[float]:
        return vector(plain, self.program.numbers).tolist()

    def number(self, place: int) -> float:
        return self.numbers([place, 1])[0]

    def epilogue(self, plain: Plain | None) -> Any:
        if plain is None:
            return None
        *vectors, activation, low, high = plain
        chosen = getattr(self._module.Activation, ACTIVATIONS[activation])
        return self._module.Epilogue(
            **dict(zip(EPILOGUE_VECTORS, map(self.numbers, vectors), strict=True)),
            activation=chosen,
            low=self.number(low),
            high=self.number(high),
        )

    def _pack(
        self, weight: Plain, tensors: Mapping[str, CompressedTensor | Tensor]
    ) -> Any:
        name, source, *rest = weight
        kinds = PACKS[name]
        array = weight_array(source, tensors, self.program.numbers)
        given = [
            array,
            *(
                self._real(kind, x, (), 1)
                for kind, x in zip(kinds[1:], rest, strict=True)
            ),
        ]
        workspace = [] if name == "embedding" else [self._workspace]
        return getattr(self._module, f"pack_{name}")(*workspace, *given)


# What the kernels take for an argument of each kind that only the program decides.
_REAL: dict[str, Callable[[Replay, Any], Any]] = {
    "weight": Replay.weight,
    "epilogue": Replay.epilogue,
    "mean": Replay.epilogue,
    "numbers": Replay.numbers,
    "quant": lambda replay, x: tuple(replay.numbers(x)),
    "number": Replay.number,
    "axes": lambda replay, x: list(map(tuple, x)),
    "window": lambda replay, x: x,
}


def weight_array(
    source: Plain, tensors: Mapping[str, CompressedTensor | Tensor], numbers: Any
) -> Any:
    """The floats that a source of the plan stands for."""
    how, *rest = source
    shape = rest[-1]
    if how == "numbers":
        flat = vector(rest[0], numbers)
    else:
        name, turned = rest[:2]
        tensor = tensors[name]
        flat = _flat(how, tensor, rest, numbers)
        stored = flat.reshape(tuple(tensor.shape))
        if isinstance(turned, list):
            flat = with_phases(stored, turned, shape)
        elif turned:
            flat = stored.T
    if flat.size != math.prod(shape):
        raise ValueError(f"a weight of {shape} has {flat.size} numbers")
    return np.ascontiguousarray(flat.reshape(shape))


def _flat(
    how: str, tensor: CompressedTensor | Tensor, rest: Sequence[Any], numbers: Any
) -> Any:
    if how == "codes":
        if not isinstance(tensor, CompressedTensor):
            raise ValueError("a tensor without codes has no table")
        return vector(rest[2], numbers)[tensor.codes.numpy().reshape(-1)]
    dense = tensor.to_dense() if isinstance(tensor, CompressedTensor) else tensor
    floats = dense.detach().to(torch.float32).numpy().reshape(-1)
    return np.sign(floats) if how == "signs" else floats


def _buffers(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    return [(x.data_ptr(), x.numel()) for x in tensors]
