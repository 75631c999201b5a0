"""Runs of lowered nodes → C++ engines, which share packed weights and threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.capture.values import Value
from tersify.runtime.extension import chosen_isa
from tersify.runtime.fast_call import fast_part
from tersify.runtime.plan import Node, Quant
from tersify.runtime.weights import Weight

Item = tuple[int, tuple[int, int, int]]


def item_of_shape(shape: Sequence[int]) -> Item:
    """How many items a value has, and (channels, height, width) of each. The numbers
    keep their order in memory.
    """
    # The engine's values are items of [channels, height, width].
    if len(shape) < 2:
        return 1, (math.prod(shape), 1, 1)
    items, channels, rest = shape[0], shape[1], shape[2:]
    return items, (channels, math.prod(rest[:-1]), rest[-1] if rest else 1)


class Kernels:
    """What all engines of a compiled network share: the threads and the packed weights
    of its parameters. In order: fp32 sums have the same bits on every instruction set.
    """

    def __init__(
        self, module: ModuleType, threads: int, *, in_order: bool = False
    ) -> None:
        self.module = module
        self.workspace: Any = module.Workspace(
            chosen_isa(module), threads, in_order=in_order
        )
        self.packed: dict[Hashable, Any] = {}


class Emitter:
    """Adds nodes to a C++ engine and remembers which of its values is which."""

    def __init__(self, kernels: Kernels, quants: Mapping[str, Quant]) -> None:
        self.module = kernels.module
        self.workspace = kernels.workspace
        self.quants = quants
        self.engine: Any = kernels.module.Engine(kernels.workspace)
        self.makers: dict[int, str] = {}  # the node behind every value of the engine
        self._kernels = kernels
        self._values: dict[str, int] = {}
        self._items: dict[str, Item] = {}

    def add_input(self, name: str, value: Value) -> None:
        items, shape = item_of_shape(value.shape)
        # Token ids are the only integers that the engine reads.
        ids = value.dtype == torch.int64
        self._values[name] = (
            self.engine.input_ids(items, math.prod(shape))
            if ids
            else self.engine.input(items, shape)
        )
        self._items[name] = (items, shape)

    def add(self, node: Node) -> None:
        value = node.op.emit(self, node)
        self.belongs_to(node, value)
        items, shape = item_of_shape(node.shape)
        # A kernel may give the same numbers under another shape of items.
        if tuple(self.engine.shape(value)) != (items, *shape):
            value = self.engine.view(value, items, shape)
            self.belongs_to(node, value)
        self._values[node.name] = value
        self._items[node.name] = (items, shape)

    def outputs(self, names: Sequence[str]) -> None:
        self.engine.outputs([self._values[name] for name in names])

    def source(self, node: Node, position: int = 0) -> int:
        return self._values[node.inputs[position]]

    def item_of(self, name: str) -> Item:
        return self._items[name]

    def item_of_shape(self, shape: Sequence[int]) -> Item:
        return item_of_shape(shape)

    def also(self, node: Node, name: str, value: int, shape: Sequence[int]) -> None:
        """One more value that a node makes."""
        items, item = item_of_shape(shape)
        self._values[name] = self.engine.view(value, items, item)
        self._items[name] = (items, item)
        self.belongs_to(node, self._values[name])

    def belongs_to(self, node: Node, value: int) -> None:
        self.makers[value] = node.name

    def packed(
        self, weight: Weight, how: tuple[Hashable, ...], pack: Callable[[], Any]
    ) -> Any:
        """The weight packed in a certain way; a parameter of the model is packed once
        for all sizes.
        """
        # A weight without a name cannot be found again by another plan.
        if not weight.name:
            return pack()
        key = (weight.name, *how)
        if key not in self._kernels.packed:
            self._kernels.packed[key] = pack()
        return self._kernels.packed[key]


class Segment:
    """Consecutive nodes as one C++ call."""

    def __init__(
        self,
        kernels: Kernels,
        nodes: Sequence[Node],
        values: Mapping[str, Value],
        later: set[str],
        quants: Mapping[str, Quant],
    ) -> None:
        # `later` are the names that stages behind this one, or the caller, read.
        made = {name for node in nodes for name in node.makes}
        self.nodes = tuple(nodes)
        # What is read and not made inside; dict.fromkeys keeps the order, each once.
        self.inputs = tuple(
            dict.fromkeys(
                name for node in nodes for name in node.inputs if name not in made
            )
        )
        self.outputs = tuple(
            name for node in nodes for name in node.makes if name in later
        )
        self.shapes = tuple(values[name].shape for name in self.outputs)
        self._dtypes = tuple(values[name].dtype for name in self.inputs)
        self._sizes = tuple(values[name].shape for name in self.inputs)
        emitter = Emitter(kernels, quants)
        for name in self.inputs:
            emitter.add_input(name, values[name])
        for node in nodes:
            emitter.add(node)
        emitter.outputs(self.outputs)
        self.engine = emitter.engine
        self._makers = emitter.makers
        # Masks of bool become floats first, which the fast call does not do.
        self._fast = (
            None
            if torch.bool in self._dtypes
            else fast_part(kernels.module, self.engine, self._sizes, self.shapes)
        )

    @property
    def takes_only_floats(self) -> bool:
        return all(dtype == torch.float32 for dtype in self._dtypes)

    def run(self, *inputs: Tensor) -> list[Tensor] | None:
        """The outputs; None where an input or what a curve makes is not finite, which
        kernels that skip zeros cannot propagate.
        """
        made: list[Tensor] | None = None if self._fast is None else self._fast(inputs)
        return self._run_checked(inputs) if made is None else made

    def _run_checked(self, inputs: Sequence[Tensor]) -> list[Tensor] | None:
        """For inputs that are laid out in another way, and for those that do not fit."""
        given = [self._prepared(position, x) for position, x in enumerate(inputs)]
        outputs = self._blank_outputs()
        done = self.engine.run(_buffers(given), _buffers(outputs))
        return outputs if done else None

    def profile(
        self, inputs: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[tuple[str, str, float]]]:
        """What `run` returns, and of every step the node it belongs to, its kernel and
        its microseconds.
        """
        given = [self._prepared(position, x) for position, x in enumerate(inputs)]
        outputs = self._blank_outputs()
        steps = self.engine.profile(_buffers(given), _buffers(outputs))
        return outputs, [
            (self._makers[value], kernel, us)
            for value, kernel, us in steps
            if value in self._makers
        ]

    def _blank_outputs(self) -> list[Tensor]:
        # The caller's default device may be another, whose memory the engine cannot
        # write.
        return [
            torch.empty(shape, dtype=torch.float32, device="cpu")
            for shape in self.shapes
        ]

    def _prepared(self, position: int, x: Tensor) -> Tensor:
        """The input, checked, as kernels read it: one number behind the other."""
        if x.dtype != self._dtypes[position] or tuple(x.shape) != self._sizes[position]:
            wanted = f"{self._dtypes[position]} {self._sizes[position]}"
            raise ValueError(
                f"a compiled segment takes {wanted}, got {x.dtype} {tuple(x.shape)}"
            )
        if x.dtype == torch.bool:
            return x.to(torch.float32).contiguous()
        # What lies at `data_ptr` may be the negative of what is meant, or nothing:
        # zeros.
        return (x.clone() if x.is_neg() or x._is_zerotensor() else x).contiguous()


def _buffers(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Addresses, not tensors: wrapping each one would cost more than a small network."""
    return [(x.data_ptr(), x.numel()) for x in tensors]
