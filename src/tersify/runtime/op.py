"""`tersify::run`: a compiled segment as a torch operator, so that torch.compile and torch.export see one node."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch
from torch import Tensor


class Segment:
    """A C++ engine with the shapes of what it returns. Operators take numbers, not objects: hence `number`."""

    def __init__(self, engine: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
        self.engine = engine
        self.shapes = shapes
        self.number = next(_NUMBERS)
        _SEGMENTS[self.number] = self

    def empty_outputs(self, like: Tensor) -> list[Tensor]:
        return [like.new_empty((like.shape[0], *shape)) for shape in self.shapes]


_NUMBERS = itertools.count(1)
_SEGMENTS: weakref.WeakValueDictionary[int, Segment] = weakref.WeakValueDictionary()

_LIBRARY = torch.library.Library("tersify", "FRAGMENT")
_LIBRARY.define("run(Tensor[] inputs, int segment) -> Tensor[]")


def _run(inputs: list[Tensor], segment: int) -> list[Tensor]:
    found = _SEGMENTS.get(segment)
    if found is None:
        raise ValueError(f"segment {segment} belongs to a compiled network that no longer exists; compile it again")
    outputs = found.empty_outputs(inputs[0])
    if len(inputs[0]):
        found.engine.run(len(inputs[0]), [x.detach() for x in inputs], outputs)
    return outputs


def _run_fake(inputs: list[Tensor], segment: int) -> list[Tensor]:
    return _SEGMENTS[segment].empty_outputs(inputs[0])


_LIBRARY.impl("run", _run, "CPU")
torch.library.register_fake("tersify::run", _run_fake, lib=_LIBRARY)
