"""`tersify::run`: a compiled segment as a torch operator, so that torch.compile and torch.export see one node."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, empty, empty_like, float32
from torch._C import _get_tracing_state, _len_torch_dispatch_stack
from torch.compiler import is_compiling

from tersify.runtime.engine import extension
from tersify.runtime.plan import Node

# Said aloud: the caller's default device may be another, whose memory the engine cannot write.
CPU = torch.device("cpu")


class Segment:
    """A C++ engine with the sizes of what it takes and returns. Operators take numbers, not objects: hence `number`."""

    def __init__(
        self,
        engine: Any,
        input_sizes: tuple[int, ...],
        shapes: tuple[tuple[int, ...], ...],
        row_counts: Mapping[int, int] | None = None,
        makers: Mapping[int, str] | None = None,
    ) -> None:
        self.engine = engine
        self.makers = makers or {}  # the node that makes a value of the engine
        self.row_counts = row_counts or {}  # of the embeddings that an input numbers, by the input's place
        self.input_sizes = input_sizes  # numbers per image
        self.shapes = shapes
        self.number = next(_NUMBERS)
        _SEGMENTS[self.number] = self

    def empty_outputs(self, like: Tensor) -> list[Tensor]:
        batch = like.shape[0]
        return [like.new_empty((batch, *shape), dtype=torch.float32) for shape in self.shapes]

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        given, outputs = self._prepared(inputs)
        if batch := given[0].shape[0]:
            # Addresses, not tensors: wrapping each one would cost more than a small network.
            self.engine.run(batch, [x.data_ptr() for x in given], [y.data_ptr() for y in outputs])
        return outputs

    def again(self, shapes: tuple[torch.Size, ...], hooks: tuple[dict[int, Any], ...], one: bool) -> Any:
        """A function of a tuple of inputs of these shapes, which passed every check, that returns what `run` would.

        Where `one` is wanted, the output itself.

        Also of the module's `__dict__`: it returns None where that holds hooks or another `forward`, where inputs
        differ, and while others hook or watch. There may be no such function: None.
        Kernels have swept the caches when it runs, so that every look at torch costs: it is C++, and takes few.
        """
        kernels = None if self.row_counts or not shapes[0][0] else extension()
        exchange = getattr(Tensor, "__dlpack_c_exchange_api__", None)  # since torch 2.10
        if kernels is None or exchange is None:
            return None
        blanks = tuple(empty(shapes[0][0], *shape, dtype=float32, device=CPU) for shape in self.shapes)
        for blank in blanks:
            blank.untyped_storage().resize_(0)  # it only says what an output is like
        watchers = (_len_torch_dispatch_stack, _get_tracing_state)
        fast = kernels.FastCall(Tensor, exchange, empty_like, one, hooks, watchers)
        fast.remember(shapes, self.engine.at(shapes[0][0]), blanks)
        return fast

    def profile(self, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[tuple[str, str, float]]]:
        """What `run` returns, and of every step the node it belongs to, its kernel and its microseconds."""
        given, outputs = self._prepared(inputs)
        addresses = [[x.data_ptr() for x in tensors] for tensors in (given, outputs)]
        steps = self.engine.profile(len(given[0]), *addresses) if len(given[0]) else []
        return outputs, [(self.makers[value], kernel, us) for value, kernel, us in steps if value in self.makers]

    def _prepared(self, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The inputs, checked, as kernels read them, and room for the outputs."""
        batch = inputs[0].shape[0]
        for place, rows in self.row_counts.items():
            _check_numbers(inputs[place], rows)
        for place, (x, size) in enumerate(zip(inputs, self.input_sizes, strict=True)):
            wanted = torch.int64 if place in self.row_counts else torch.float32
            if x.dtype != wanted or x.numel() != batch * size:
                raise ValueError(f"tersify::run takes {wanted} of {batch}×{size} numbers, got {x.dtype} {x.shape}")
        outputs = [empty(batch, *shape, dtype=float32, device=CPU) for shape in self.shapes]
        return [_in_memory(x) for x in inputs], outputs


@dataclass(frozen=True)
class Stage:
    """Consecutive nodes: one C++ call where `segment` is set, one torch call each otherwise."""

    nodes: tuple[Node, ...]
    segment: Segment | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def _check_numbers(x: Tensor, rows: int) -> None:
    low, high = (int(end) for end in x.aminmax()) if x.numel() else (0, 0)
    if low < 0 or high >= rows:
        raise ValueError(f"an embedding of {rows} rows takes numbers 0..{rows - 1}, got {low}..{high}")


def watched() -> bool:
    return is_compiling() or _len_torch_dispatch_stack() > 0 or _get_tracing_state() is not None


_NUMBERS = itertools.count(1)
_SEGMENTS: weakref.WeakValueDictionary[int, Segment] = weakref.WeakValueDictionary()


def call(segment: Segment, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The operator where somebody watches (a tracer, a mode, a subclass); else the engine itself, 10 µs sooner."""
    if watched() or any(map(_is_wrapped, inputs)):
        outputs: list[Tensor] = torch.ops.tersify.run(list(inputs), segment.number)
        return outputs
    return segment.run(inputs)


def _is_wrapped(x: Tensor) -> bool:
    return (type(x) is not Tensor and type(x) is not torch.nn.Parameter) or torch._is_functional_tensor(x)


def _in_memory(x: Tensor) -> Tensor:
    """One number behind the other. What lies at `data_ptr` may be the negative of what is meant, or nothing: zeros."""
    return (x.clone() if x.is_neg() or x._is_zerotensor() else x).contiguous()


_LIBRARY = torch.library.Library("tersify", "FRAGMENT")
_LIBRARY.define("run(Tensor[] inputs, int segment) -> Tensor[]")


def _run(inputs: list[Tensor], segment: int) -> list[Tensor]:
    found = _SEGMENTS.get(segment)
    if found is None:
        raise ValueError(f"segment {segment} belongs to a compiled network that no longer exists; compile it again")
    return found.run(inputs)


def _run_fake(inputs: list[Tensor], segment: int) -> list[Tensor]:
    return _SEGMENTS[segment].empty_outputs(inputs[0])


_LIBRARY.impl("run", _run, "CPU")
torch.library.register_fake("tersify::run", _run_fake, lib=_LIBRARY)
