"""The plan: a network at one set of sizes as a short list of fused operations, the only
thing that executors read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torch import Tensor

from tersify.runtime.capture.values import Value

if TYPE_CHECKING:
    from tersify.runtime.ops.base import Op


@dataclass(frozen=True, kw_only=True)
class Quant:
    """Whole numbers low..high that stand for themselves × scale."""

    scale: float
    low: int
    high: int


@dataclass(frozen=True, kw_only=True)
class Node:
    """One operation and the value it makes.

    `covers` holds the names of the recorded values that are computed inside it, its own
    among them. `more` are other values that it makes. `reason` says why the node is
    what it is.
    """

    name: str
    op: Op
    inputs: tuple[str, ...]
    value: Value
    covers: frozenset[str] = frozenset()
    more: Mapping[str, Value] = field(default_factory=dict)
    reason: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def in_torch(self) -> bool:
        return self.op.in_torch

    @property
    def kind(self) -> str:
        return self.op.kind

    @property
    def makes(self) -> tuple[str, ...]:
        return (self.name, *self.more)

    def reading(self, renamed: Mapping[str, str]) -> Node:
        """The same node reading the values under their new names."""
        if not any(name in renamed for name in self.inputs):
            return self
        inputs = tuple(renamed.get(name, name) for name in self.inputs)
        return replace(self, inputs=inputs, op=self.op.renamed(renamed))

    def describe(self) -> str:
        shape = "×".join(map(str, self.shape))
        notes = [*self.op.describe(self.inputs), self.reason]
        return f"{self.name}: {self.kind} → {shape}" + "".join(
            f"; {note}" for note in notes if note
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Nodes in order. `inputs` are what the caller gives; `quants` are the steps of
    what int8 kernels read or write.
    """

    inputs: Mapping[str, Value]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    quants: Mapping[str, Quant] = field(default_factory=dict)

    def values(self) -> dict[str, Value]:
        """Of the inputs and of every node."""
        found = dict(self.inputs)
        for node in self.nodes:
            found[node.name] = node.value
            found.update(node.more)
        return found

    def describe(self) -> str:
        """One line an operation, and how many stayed torch calls."""
        torch_calls = sum(node.in_torch for node in self.nodes)
        lines = [node.describe() for node in self.nodes]
        lines.append(
            f"{len(self.nodes) - torch_calls} operations with kernels, {torch_calls} torch calls"
        )
        return "\n".join(lines)

    def with_each(self, change: Callable[[Node], Node]) -> Plan:
        """With every node as `change` makes it."""
        return replace(self, nodes=tuple(map(change, self.nodes)))

    def live(self) -> Plan:
        """Without the nodes nobody reads, unless they draw random numbers, and without
        the constants nobody needs then.
        """
        wanted = set(self.outputs)
        kept: list[Node] = []
        # Backwards, so that a node's readers are known before the node itself.
        for node in reversed(self.nodes):
            if wanted.intersection(node.makes) or node.op.draws:
                kept.append(node)
                wanted.update(node.inputs)
        constants = {
            name: tensor for name, tensor in self.constants.items() if name in wanted
        }
        return replace(self, nodes=tuple(reversed(kept)), constants=constants)

    def readers(self) -> dict[str, int]:
        """How often each value is read; being an output counts."""
        # An output counts, so that no pass folds a value away that the caller wants.
        # One node that reads a value twice counts twice.
        counts: dict[str, int] = {}
        for name in (
            *self.outputs,
            *(name for node in self.nodes for name in node.inputs),
        ):
            counts[name] = counts.get(name, 0) + 1
        return counts
