"""Nested arguments and results: tuples, lists, mappings and dataclasses with tensors at
their leaves.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

# What may stand in a result beside tensors: it is the same for every input of one size.
_PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.Size,
)


def map_leaves(nested: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with `change` applied to each leaf; containers are copied,
    never edited.
    """
    # torch.Size is a tuple and text is a sequence, yet each is one leaf here.
    if isinstance(nested, (torch.Size, str, bytes)):
        return change(nested)
    if isinstance(nested, tuple):
        # A named tuple takes its items one by one, any other tuple takes a sequence.
        items = [map_leaves(item, change) for item in nested]
        return (
            type(nested)(*items) if hasattr(nested, "_fields") else _like(nested, items)
        )
    if isinstance(nested, list):
        return _like(nested, [map_leaves(item, change) for item in nested])
    if isinstance(nested, Mapping):
        return _mapping(
            nested, {key: map_leaves(item, change) for key, item in nested.items()}
        )
    if dataclasses.is_dataclass(nested) and not isinstance(nested, type):
        made = copy.copy(nested)
        for field in dataclasses.fields(nested):
            # This also sets the fields of a frozen dataclass.
            object.__setattr__(
                made, field.name, map_leaves(getattr(nested, field.name), change)
            )
        return made
    return change(nested)


def _like(nested: Any, items: list[Any]) -> Any:
    """The items in a container of the same type. A subclass of list or tuple is built
    from a sequence, as most of them can be.
    """
    return items if type(nested) is list else type(nested)(items)


def _mapping(nested: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if type(nested) is dict:
        return items
    if hasattr(nested, "__dataclass_fields__"):  # Hugging Face's outputs are both
        make: Any = type(nested)
        return make(**items)
    # A copy keeps what the type holds besides its items, such as a default factory.
    made: Any = copy.copy(nested)
    made.update(items)
    return made


def leaves(nested: Any) -> list[Any]:
    """Every leaf, in order."""
    found: list[Any] = []
    map_leaves(nested, found.append)
    return found


def tensors(nested: Any) -> list[Tensor]:
    return [leaf for leaf in leaves(nested) if isinstance(leaf, Tensor)]


def is_plain(leaf: Any) -> bool:
    """Neither a tensor nor an object that may hide one."""
    return isinstance(leaf, _PLAIN)


def signature(nested: Any) -> Any:
    """What two nests of one size share: their structure, the shape and type of each
    tensor, and all else as it is.
    """
    # Numbers do not count: calls with other numbers run the same plan.
    if isinstance(nested, Tensor):
        return (nested.shape, nested.dtype)
    # The type is part of it, because a module may treat a list and a tuple in different
    # ways.
    if isinstance(nested, (tuple, list)) and not isinstance(nested, torch.Size):
        return (type(nested), *(signature(item) for item in nested))
    if isinstance(nested, Mapping):
        return (type(nested), *((key, signature(item)) for key, item in nested.items()))
    if dataclasses.is_dataclass(nested) and not isinstance(nested, type):
        return (
            type(nested),
            *(
                signature(getattr(nested, field.name))
                for field in dataclasses.fields(nested)
            ),
        )
    return (type(nested), nested)
