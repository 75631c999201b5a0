"""What a capture records: calls of functional ATen operations, and the values between
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.nested import map_leaves


class Ref:
    """The position of a value in the arguments of a call. No dataclass: those are
    containers of arguments.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Ref({self.name!r})"


def resolve(arguments: Any, values: Mapping[str, Any]) -> Any:
    """The arguments with the values in their positions."""
    return map_leaves(
        arguments, lambda leaf: values[leaf.name] if type(leaf) is Ref else leaf
    )


def refs(arguments: Any) -> tuple[str, ...]:
    """The names of the values in the arguments, each once."""
    found: dict[str, None] = {}
    map_leaves(
        arguments,
        lambda leaf: found.setdefault(leaf.name) if type(leaf) is Ref else None,
    )
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Value:
    """The size and type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Value:
        return cls(shape=tuple(tensor.shape), dtype=tensor.dtype)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One operation without side effects. `results` names its tensors in order."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        return refs((self.args, self.kwargs))

    def arguments(self) -> dict[str, Any]:
        """By their names in the operation's schema, defaults filled in."""
        # Positional arguments in the order of the schema, then those by keyword.
        schema = self.target._schema  # type: ignore[attr-defined]
        given = dict(
            zip((a.name for a in schema.arguments), self.args, strict=False)
        ) | dict(self.kwargs)
        return {a.name: given.get(a.name, a.default_value) for a in schema.arguments}


@dataclass(frozen=True, kw_only=True)
class Share:
    """An output that is, or looks into, the memory of `base`: the name of an input, of
    a state or of another output, or a tensor that the module reads.

    `view` is its shape, its strides and how far it begins behind the base; None where
    it is the base itself. `stride` is that of the base.
    """

    base: str | Tensor
    view: tuple[tuple[int, ...], tuple[int, ...], int] | None = None
    stride: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """The memory that the outputs of a graph share, by the names of their values."""

    shares: Mapping[str, Share] = field(default_factory=dict)
    # Some share memory in another way, which only the module itself can give.
    is_entangled: bool = False
    # Laid out in another order an input would share its memory with an output.
    loose_inputs: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A module at one set of input sizes, without side effects.

    `inputs` are the tensors of the caller in order; `state` are tensors of the module
    that its forward changes: they are read anew at every call. `outputs` is the
    module's result with a Ref for each tensor. `written` maps an input or a state to
    the value that it holds afterwards.
    """

    inputs: tuple[str, ...]
    calls: tuple[Call, ...]
    outputs: Any
    values: Mapping[str, Value]
    constants: Mapping[str, Tensor]
    # the model's parameters and buffers by their names
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    state: Mapping[str, Tensor] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)
    random: bool = False
    # with inputs laid out otherwise, a write would reach other values
    depends_on_strides: bool = False
    strides_read_by: str = ""  # the call, where it is one of the forward
    sharing: Sharing = field(default_factory=Sharing)

    @property
    def results(self) -> tuple[str, ...]:
        """The values that a run must make: those of the outputs, and what inputs and
        state hold afterwards.
        """
        return tuple(dict.fromkeys((*refs(self.outputs), *self.written.values())))
