"""A stand-in for the compiled kernels: it passes every call on and writes down what an
engine was told.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from tersify.runtime.portable.program import Numbers, Place, Plain, Vector
from tersify.runtime.portable.signatures import (
    ACTIVATIONS,
    CALLS,
    CHOICES,
    EPILOGUE_VECTORS,
    LENGTHS,
    MAKES_NOTHING,
    PACKS,
)
from tersify.runtime.portable.sources import Sources


@dataclass(frozen=True, eq=False)
class _Told:
    """An object of the kernels, and what the plan says of it."""

    real: Any
    plain: Any


class Tape:
    """Calls, weights and numbers in the order in which they came."""

    def __init__(self, sources: Sources) -> None:
        self.calls: list[Plain] = []
        self.weights: list[Plain] = []
        self._numbers: list[Numbers] = []
        self._count = 0
        self._vectors: dict[bytes, Vector] = {}
        self._values: dict[int, int] = {}
        self._made = 0
        self._sources = sources

    @property
    def numbers(self) -> Numbers:
        return np.concatenate([np.empty(0, np.float32), *self._numbers])

    def place(self, number: float) -> Place:
        return Place(self.vector([number])[0])

    def vector(self, numbers: Sequence[float] | Numbers) -> Vector:
        """Where the numbers lie; equal ones are kept once."""
        own = np.array(numbers, np.float32)
        key = own.tobytes()
        if key not in self._vectors:
            begin = self._count if len(own) else 0
            self._vectors[key] = Vector([begin, len(own)])
            self._numbers.append(own)
            self._count += len(own)
        return self._vectors[key]

    def call(self, name: str, given: Sequence[Any], real: Callable[..., Any]) -> Any:
        kinds = CALLS[name]
        assert len(given) == len(kinds), f"{name} takes {len(kinds)} arguments"
        self.calls.append(
            [
                name,
                *(self._plain(kind, x) for kind, x in zip(kinds, given, strict=True)),
            ]
        )
        made = real(*map(_real, given))
        if name not in MAKES_NOTHING:
            self._values.setdefault(made, self._made)
            self._made += 1
        return made

    def pack(self, name: str, given: Sequence[Any], real: Callable[..., Any]) -> _Told:
        kinds = PACKS[name]
        # the others begin with the workspace
        own = given if name == "embedding" else given[1:]
        assert len(own) == len(kinds), f"{name} takes {len(kinds)} arguments"
        rest = [
            self._plain(kind, x) for kind, x in zip(kinds[1:], own[1:], strict=True)
        ]
        self.weights.append([name, self._array(own[0], _only_signs(name, rest)), *rest])
        return _Told(real(*given), len(self.weights) - 1)

    def epilogue(self, real: Any, given: dict[str, Any]) -> _Told:
        vectors = [self.vector(given[name]) for name in EPILOGUE_VECTORS]
        ends = [self.place(given[name]) for name in ("low", "high")]
        return _Told(
            real, [*vectors, ACTIVATIONS.index(given["activation"].name), *ends]
        )

    def made(self, value: int) -> int:
        """The number of an engine's value among all that calls made."""
        return self._values[value]

    def _plain(self, kind: str, x: Any) -> Any:
        if kind in CHOICES:
            return CHOICES[kind][1].index(x.name)
        if kind in LENGTHS:
            assert len(x) == LENGTHS[kind]
            return list(map(bool if kind.startswith("flags") else int, x))
        return _PLAIN[kind](self, x) if kind in _PLAIN else int(x)

    def _array(self, array: Any, only_signs: bool) -> Plain:
        values = array.detach().numpy() if isinstance(array, Tensor) else array
        source, numbers = self._sources.find(values, only_signs=only_signs)
        place = [] if numbers is None else [self.vector(numbers)]
        return [*source, *place, list(map(int, values.shape))]


def _told(tape: Tape, x: _Told | None) -> Any:
    return None if x is None else x.plain


# How a tape writes an argument of each kind down; the other kinds are whole numbers.
_PLAIN: dict[str, Callable[[Tape, Any], Any]] = {
    "value": lambda tape, x: -1 if x == -1 else tape.made(x),
    "values": lambda tape, x: list(map(tape.made, x)),
    "weight": _told,
    "epilogue": _told,
    "mean": _told,
    "numbers": lambda tape, x: tape.vector(list(x)),
    "quant": lambda tape, x: tape.vector(list(x)),
    "number": Tape.place,
    "flag": lambda tape, x: bool(x),
    "axes": lambda tape, x: [list(map(int, axis)) for axis in x],
}


def _only_signs(name: str, rest: Sequence[Any]) -> bool:
    """Whether a weight packed so is multiplied by its signs alone."""
    if name in ("conv", "linear"):
        kind = PACKS[name].index("kind") - 1
        return bool(rest[kind] == CHOICES["kind"][1].index("SIGN"))
    return name == "conv_i8" or (name == "linear_i8" and rest[0])


def _real(x: Any) -> Any:
    return x.real if isinstance(x, _Told) else x


class _Engine:
    def __init__(self, engine: Any, tape: Tape) -> None:
        self._engine = engine
        self._tape = tape

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._engine, name)
        return (
            (lambda *given: self._tape.call(name, given, real))
            if name in CALLS
            else real
        )


class Recording:
    """What `tersify._runtime` is to an emitter."""

    def __init__(self, module: Any, tape: Tape) -> None:
        self._module = module
        self._tape = tape

    def Engine(self, workspace: Any) -> _Engine:  # noqa: N802  (the name of the class it stands for)
        return _Engine(self._module.Engine(workspace), self._tape)

    def Epilogue(self, **given: Any) -> _Told:  # noqa: N802
        return self._tape.epilogue(self._module.Epilogue(**given), given)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._module, name)
        how = name.removeprefix("pack_")
        return (
            functools.partial(self._packed, how, real)
            if how in PACKS and name != how
            else real
        )

    def _packed(self, how: str, real: Callable[..., Any], *given: Any) -> _Told:
        return self._tape.pack(how, given, real)
