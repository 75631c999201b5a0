"""What every operation is: data, a reference in plain torch, how it is emitted, and
what lowers to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from tersify.runtime.capture.values import Call, Graph, Ref
from tersify.runtime.weights import Weight, classify
from tersify.tensor import CompressedTensor

if TYPE_CHECKING:
    from tersify.runtime.engine import Emitter
    from tersify.runtime.plan import Node, Quant


@dataclass(frozen=True, kw_only=True, eq=False)
class Op(ABC):
    """A frozen description. Its operands are the node's inputs, in order."""

    kind: ClassVar[str]

    @property
    def in_torch(self) -> bool:
        """No kernel of ours runs it."""
        return False

    @property
    def draws(self) -> bool:
        """It draws random numbers, and so changes those that follow."""
        return False

    @abstractmethod
    def reference(
        self, sources: Sequence[Any], node: Node, quants: Mapping[str, Quant]
    ) -> Any:
        """The value in plain torch, in the floating type of the sources."""

    @abstractmethod
    def emit(self, emitter: Emitter, node: Node) -> int:
        """Add the operation to an engine; its value there."""

    def describe(self, inputs: tuple[str, ...]) -> list[str]:
        return []

    def renamed(self, names: Mapping[str, str]) -> Op:
        """The operation when its inputs have other names; only a torch call holds names
        itself.
        """
        return self


class CannotLower(Exception):  # noqa: N818  (a control signal, never shown as an error)
    """No kernel serves this call; the message says why."""


class Context:
    """What the lowerings know: the graph, and the weights with what is known of their
    origin.
    """

    def __init__(
        self,
        graph: Graph,
        classified: dict[str, Weight],
        origins: Mapping[str, CompressedTensor],
    ) -> None:
        self.graph = graph
        # by the name of the parameter: other sizes of the network share it
        self._classified = classified
        self._origins = origins
        # Reversed, so that of tied parameters the first name wins.
        self._names = {
            _place(tensor): name
            for name, tensor in reversed(list(graph.parameters.items()))
        }
        self._read = _read_for_results(graph)

    def constant(self, given: Any, what: str) -> Tensor:
        if not self.is_constant(given):
            raise CannotLower(f"its {what} is computed from the input")
        return self.graph.constants[given.name]

    def optional(self, given: Any, what: str) -> Tensor | None:
        return None if given is None else self.constant(given, what)

    def is_constant(self, given: Any) -> bool:
        return isinstance(given, Ref) and given.name in self.graph.constants

    def parameter(self, given: Ref) -> str:
        """What the model calls a constant, or the matrix that it is the transpose of."""
        tensor = self.graph.constants[given.name]
        # `addmm` and `matmul` read a linear layer's weight transposed.
        transposed = tensor.t() if tensor.ndim == 2 else tensor
        return (
            self._names.get(_place(tensor))
            or self._names.get(_place(transposed))
            or given.name
        )

    def weight(self, given: Any, *, transposed: bool = False) -> Weight:
        """The constant as a weight of [outputs, …]; `transposed`: it is [features,
        outputs].
        """
        tensor = self.constant(given, "weight")
        if tensor.dtype != torch.float32:
            raise CannotLower(f"kernels take float32 weights, these are {tensor.dtype}")
        tensor = tensor.t() if transposed else tensor
        # A constant that is no parameter, such as a folded one, has no name by which
        # another plan could find it, so it is not remembered.
        name = self._names.get(_place(tensor))
        if name is None:
            return classify(given.name, tensor)
        if name not in self._classified:
            found = classify(name, tensor, self._origins.get(name))
            self._classified[name] = replace(found, name=name)
        return self._classified[name]

    def floats(self, given: Any, *, rank: int | None = None) -> tuple[int, ...]:
        """The shape of a float32 value that is no constant."""
        if not isinstance(given, Ref) or given.name in self.graph.constants:
            raise CannotLower("an operand is a constant")
        value = self.graph.values[given.name]
        # Other types stay in torch, where they keep their own rounding.
        if value.dtype != torch.float32:
            raise CannotLower(f"kernels take float32, this is {value.dtype}")
        if rank is not None and len(value.shape) != rank:
            raise CannotLower(
                f"the kernel takes {rank} axes, this has {len(value.shape)}"
            )
        # Kernels assume at least one number along each axis.
        if 0 in value.shape:
            raise CannotLower("a tensor is empty")
        return value.shape

    def is_read(self, name: str) -> bool:
        return name in self._read

    def unread(self, names: Sequence[str]) -> None:
        if any(map(self.is_read, names)):
            raise CannotLower("more of its results are read than the kernel makes")

    def only_first_result(self, call: Call) -> None:
        self.unread(call.results[1:])


def _read_for_results(graph: Graph) -> set[str]:
    """The results, and what the calls read that lead to one: others are not made."""
    read = set(graph.results)
    for call in reversed(graph.calls):
        if not read.isdisjoint(call.results):
            read.update(call.reads)
    return read


# A lowering returns the operation and the names of its operands.
Lowering = Callable[[Call, Context], tuple[Op, tuple[str, ...]]]
LOWERINGS: dict[Any, Lowering] = {}


def lowers(*targets: Any) -> Callable[[Lowering], Lowering]:
    def register(lowering: Lowering) -> Lowering:
        for target in targets:
            LOWERINGS[target] = lowering
        return lowering

    return register


def existing(packet: Any, *overloads: str) -> list[Any]:
    """The overloads that this version of torch has."""
    return [getattr(packet, name) for name in overloads if name in packet.overloads()]


def float64(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.float64)


def float64_if_given(tensor: Tensor | None) -> Tensor | None:
    """Of a factor or a bias that a layer need not have."""
    return None if tensor is None else float64(tensor)


def number(value: float) -> Tensor:
    """A constant for all channels."""
    return torch.tensor([value], dtype=torch.float64)


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Where its numbers lie: two tensors with the same place are the same."""
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
