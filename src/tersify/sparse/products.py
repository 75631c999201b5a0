"""A matrix product of a layer, and what one call of the layer multiplies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Product:
    """A weight (M, K) that its layer multiplies with; `part` tells apart the products
    of one layer.
    """

    part: str
    kind: str
    parameter: str
    weight: Tensor
    groups: int = 1
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Call:
    """What one call of a layer multiplies: `count` rows, gathered by their numbers.

    `result` gathers the rows of what the layer made of them, less its bias, where the
    layer returns it.
    """

    part: str
    count: int
    rows: Callable[[Tensor], Tensor]
    result: Callable[[Tensor], Tensor] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


class CannotCollect(Exception):  # noqa: N818  (a control signal, never shown as an error)
    """This call has no lowering; the message says why."""


def vectors_call(part: str, values: Tensor, **more: Any) -> Call:
    flat = values.reshape(-1, values.shape[-1])
    return Call(part=part, count=len(flat), rows=lambda numbers: flat[numbers], **more)


def less_bias(values: Tensor, bias: Tensor | None) -> Tensor:
    return values if bias is None else values - bias
