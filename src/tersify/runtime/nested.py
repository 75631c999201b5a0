"""Nested arguments and results: tuples, lists, mappings and dataclasses with tensors at
their leaves.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping
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


class RebuildError(ValueError):
    """A container that cannot be copied with other items in it."""


def map_leaves(nested: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with `change` applied to each leaf; containers are copied,
    never edited.
    """
    # torch.Size is a tuple and text is a sequence, yet each is one leaf here.
    if isinstance(nested, (torch.Size, str, bytes)):
        return change(nested)
    if isinstance(nested, (tuple, list)):
        return _rebuilt(nested, [map_leaves(item, change) for item in nested])
    if isinstance(nested, Mapping):
        return _rebuilt(
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


def _rebuilt(nested: Any, items: Any) -> Any:
    """The items in a container of the same type."""
    try:
        if isinstance(nested, Mapping):
            return _mapping(nested, items)
        return (
            _tuple(nested, items) if isinstance(nested, tuple) else _list(nested, items)
        )
    except Exception as problem:  # anybody's container: what it raises is not known
        kind, why = type(nested).__name__, str(problem).partition("\n")[0][:200]
        raise RebuildError(
            f"a {kind} cannot be made again with other items ({type(problem).__name__}: {why}); use a tuple, a list or "
            "a dict"
        ) from problem


def _tuple(nested: tuple[Any, ...], items: list[Any]) -> Any:
    kind: Any = type(nested)
    if kind is tuple:
        return tuple(items)
    if kind.__module__.startswith("torch.return_types"):
        return kind(items)
    # Without the type's own constructor: it may take other arguments, or look at them,
    # as that of torch's packed sequences does.
    made = tuple.__new__(kind, items)
    if hasattr(nested, "__dict__"):
        vars(made).update(vars(nested))
    return made


def _list(nested: list[Any], items: list[Any]) -> Any:
    if type(nested) is list:
        return items
    made = copy.copy(nested)
    made[:] = items
    return made


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
    """Every leaf, in order. Nothing is copied: a container may refuse other items."""
    inner = _items(nested)
    return [nested] if inner is None else [x for item in inner for x in leaves(item)]


def _items(nested: Any) -> Iterable[Any] | None:
    """What a container holds; None of a leaf."""
    if isinstance(nested, (torch.Size, str, bytes)):
        return None
    if isinstance(nested, (tuple, list)):
        return nested
    if isinstance(nested, Mapping):
        return nested.values()
    if dataclasses.is_dataclass(nested) and not isinstance(nested, type):
        return [getattr(nested, field.name) for field in dataclasses.fields(nested)]
    return None


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
