"""The plan: a network as a short list of fused operations, the only thing the executors read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.weights import Weight


@dataclass(frozen=True, kw_only=True)
class Finish:
    """What happens to a sum: ×scale +shift, with the residual, ×scale2 +shift2, activation.

    The constants are float64 of one value a channel, or None. `act` is "clamp" (to [low, high], which with
    infinite ends is nothing), "gelu" or "silu".
    """

    scale: Tensor | None = None
    shift: Tensor | None = None
    scale2: Tensor | None = None
    shift2: Tensor | None = None
    act: str = "clamp"
    low: float = -math.inf
    high: float = math.inf

    @property
    def activates(self) -> bool:
        return self.act != "clamp" or self.low != -math.inf or self.high != math.inf

    def describe(self) -> str:
        parts = []
        if self.scale is not None or self.shift is not None:
            parts.append("affine")
        if self.scale2 is not None:
            parts.append("affine after the sum")
        if self.act != "clamp":
            parts.append(self.act)
        elif self.activates:
            parts.append("relu" if (self.low, self.high) == (0, math.inf) else f"clamp {self.low:g}..{self.high:g}")
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Quant:
    """Whole numbers low..high that stand for themselves × scale."""

    scale: float
    low: int
    high: int


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """What becomes of a convolution's finished numbers, whose shape is `before`.

    Either the maxima of windows that do not overlap, (kernel, stride, pad, dilation), each h and w; or their means over
    all places, finished in turn.
    """

    before: tuple[int, ...]
    window: tuple[int, ...] | None = None
    finish: Finish = field(default_factory=Finish)

    @property
    def is_mean(self) -> bool:
        return self.window is None

    def describe(self) -> str:
        if self.window is not None:
            return f"maxima of {self.window[0]}×{self.window[1]}"
        after = self.finish.describe()
        return "mean of all places" + (f", {after}" if after else "")


@dataclass(frozen=True)
class Ref:
    """The place of a value in the arguments of a torch call."""

    name: str


def resolve(argument: Any, values: Mapping[str, Any]) -> Any:
    """The arguments of a torch call with the values in their places."""
    if isinstance(argument, Ref):
        return values[argument.name]
    if isinstance(argument, (list, tuple)):
        return type(argument)(resolve(item, values) for item in argument)
    if isinstance(argument, Mapping):
        return {key: resolve(item, values) for key, item in argument.items()}
    return argument


@dataclass(frozen=True, kw_only=True)
class Node:
    """One operation.

    kind: conv, linear, embedding, pool, mean, pointwise, cat, view, softmax, layer_norm, or torch for what no kernel
    serves: then `call`, `args` and `kwargs` hold the call. `reason` says why the node is what it is.
    `residual` names the other summand (or factor, with `multiply`). `shape` leaves out the batch.
    `parameter` is the name that the model gives the weight; `pooled` ends a convolution.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    finish: Finish = field(default_factory=Finish)
    residual: str | None = None
    multiply: bool = False
    weight: Weight | None = None
    parameter: str = ""
    pooled: Pooled | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    call: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""

    def with_names(self, renamed: Mapping[str, str]) -> Node:
        """The same node reading the values under their new names."""

        def new(name: str) -> str:
            return renamed.get(name, name)

        names: dict[str, Any] = {name: Ref(new(name)) for name in self.inputs}
        return replace(
            self,
            inputs=tuple(new(name) for name in self.inputs),
            residual=None if self.residual is None else new(self.residual),
            args=resolve(self.args, names),
            kwargs=resolve(self.kwargs, names),
        )

    @property
    def reads(self) -> tuple[str, ...]:
        return self.inputs if self.residual is None else (*self.inputs, self.residual)

    @property
    def in_torch(self) -> bool:
        """No kernel of ours: an operation that has none, or a layer that is faster dense."""
        return self.kind == "torch" or bool(self.options.get("dense", False))

    @property
    def sums_shape(self) -> tuple[int, ...]:
        """Of what the weight makes, before it is pooled."""
        return self.shape if self.pooled is None else self.pooled.before

    @property
    def two_bit(self) -> bool:
        """A convolution whose ternary weights are multiplied with zeros and all."""
        return bool(self.options.get("two_bit", False))

    @property
    def channel_axis(self) -> int:
        return -1 if self.kind == "linear" else 1

    def describe(self) -> str:
        if self.kind == "torch":
            return f"{self.name}: torch call {getattr(self.call, '__name__', self.call)} ({self.reason})"
        notes = [self.weight.describe() if self.weight else "", self.finish.describe()]
        if self.residual is not None:
            notes.append(f"{'×' if self.multiply else '+'} {self.residual}")
        if self.pooled is not None:
            notes.append(self.pooled.describe())
        if self.reason:
            notes.append(self.reason)
        shape = "×".join(map(str, self.shape))
        return f"{self.name}: {self.kind} → {shape}" + "".join(f"; {note}" for note in notes if note)


@dataclass(frozen=True, kw_only=True)
class Input:
    name: str
    shape: tuple[int, ...]  # without the batch
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Nodes in order. `batch` is the only batch size the plan may run, or None for any.

    A convolution marked "int8" is narrow: it reads and writes values quantized as `quants` says, but for a mean, which
    is a float. Marked "two_bit" as well, it only reads its input so. A linear layer marked "int8" rounds every vector
    to 8 bits of a scale of its own. A convolution marked "fp16" reads and writes 16-bit floats, but for a mean.
    """

    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Tensor]
    batch: int | None = None
    quants: Mapping[str, Quant] = field(default_factory=dict)

    def narrow(self, node: Node) -> bool:
        wanted = bool(node.options.get("int8", False)) and not node.two_bit
        return node.kind == "conv" and node.name in self.quants and wanted

    def halves(self, node: Node) -> bool:
        return node.kind == "conv" and bool(node.options.get("fp16", False))

    def rounds_vectors(self, node: Node) -> bool:
        return node.kind == "linear" and bool(node.options.get("int8", False))

    def reads_steps(self, node: Node) -> bool:
        return node.two_bit and node.inputs[0] in self.quants

    def _note(self, node: Node) -> str:
        if node.two_bit:
            return "; int8 activations, two bits a weight"
        if self.halves(node):
            return "; fp16 activations"
        return "; int8 activations" if self.narrow(node) or self.rounds_vectors(node) else ""

    def describe(self) -> str:
        """One line an operation, and how many stayed torch calls."""
        torch_calls = sum(node.in_torch for node in self.nodes)
        lines = [node.describe() + self._note(node) for node in self.nodes]
        lines.append(f"{len(self.nodes) - torch_calls} operations with kernels, {torch_calls} torch calls")
        return "\n".join(lines)

    def live(self) -> Plan:
        """Without the nodes nobody reads."""
        wanted = set(self.outputs)
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if node.name in wanted:
                kept.append(node)
                wanted.update(node.reads)
        return replace(self, nodes=tuple(reversed(kept)))

    def readers(self) -> dict[str, int]:
        """How often each value is read; being an output counts."""
        counts: dict[str, int] = {}
        for name in (*self.outputs, *(name for node in self.nodes for name in node.reads)):
            counts[name] = counts.get(name, 0) + 1
        return counts
