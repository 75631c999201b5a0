"""One pass over a traced graph, and what the rules of all operations use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, fx

from tersify.units.labels import Labels, fixed

Role = Literal["producer", "follower", "consumer"]


class Walk:
    """One pass over the graph: the labels of every value so far, and who does what with
    the units.
    """

    def __init__(self, labels: Labels, stored: dict[fx.Node, str]) -> None:
        self.labels = labels
        self.stored = stored
        self.values: dict[fx.Node, Any] = {}
        self.roles: dict[tuple[str, int], Role] = {}
        # node, parameter, dimension of the output, labels
        self.carriers: list[tuple[fx.Node, str, int, Tensor]] = []

    def of(self, node: Any) -> Tensor:
        """The labels of a value. A stored tensor that is read like one has to stay as
        it is.
        """
        # No rule claimed this parameter, so how it is used is not known.
        if node in self.stored:
            for dim, size in enumerate(shape_of(node)):
                self.labels.freeze(self.labels.along(self.stored[node], dim, size))
            return fixed(shape_of(node))
        value = self.values[node]
        assert isinstance(value, Tensor)
        return value

    def role(self, name: str, dim: int, size: int, role: Role) -> Tensor:
        """Labels along a parameter's dimension; a tied weight that makes units anywhere
        is their producer.
        """
        labels = self.labels.along(name, dim, size)
        key = (self.labels.holder(name), dim)
        # Otherwise the first role counts.
        if role == "producer" or key not in self.roles:
            self.roles[key] = role
        return labels

    def name_of(self, node: Any) -> str | None:
        return self.stored.get(node) if isinstance(node, fx.Node) else None

    def unknown(self, node: fx.Node) -> Any:
        """Nothing that this operation reads may go."""
        for other in node.all_input_nodes:
            # Asking for the labels of a stored tensor freezes it already.
            if other in self.stored:
                self.of(other)
                continue
            for value in _tensors(self.values.get(other)):
                self.labels.freeze(value)
        return no_units(node)


def shape_of(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def no_units(node: fx.Node) -> Any:
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        return tuple(fixed(v.shape) if isinstance(v, Tensor) else None for v in value)
    return fixed(value.shape) if isinstance(value, Tensor) else None


def argument(node: fx.Node, name: str) -> Any:
    """An operation's argument by the name in its schema, wherever it was given."""
    assert isinstance(node.target, torch._ops.OpOverload)
    for place, declared in enumerate(node.target._schema.arguments):
        if declared.name == name:
            # By position, by keyword, or the schema's default.
            return (
                node.args[place]
                if place < len(node.args)
                else node.kwargs.get(name, declared.default_value)
            )
    raise KeyError(name)


def units_along(walk: Walk, labels: Tensor, dim: int) -> Tensor:
    """The labels along one dimension; where they vary elsewhere too, nothing of them
    may go.
    """
    dim %= labels.dim()
    if any(walk.labels.varies(labels, d) for d in range(labels.dim()) if d != dim):
        walk.labels.freeze(labels)
    # All other positions have the same labels, so the first line stands for them.
    return labels.movedim(dim, -1).reshape(-1, labels.shape[dim])[0]


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    # Several results, such as those of `split`, are kept as a tuple.
    if not isinstance(value, tuple):
        return []
    return [v for v in value if isinstance(v, Tensor)]


Rule = Callable[[Walk, fx.Node], Any]
