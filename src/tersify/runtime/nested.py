"""Nested arguments and results: tuples, lists, mappings and dataclasses with tensors at
their leaves.

What a container holds outside of its items counts like an item: the attributes of a
subclass of dict, list or tuple, and those of a dataclass that are no fields.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
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
_BUILT_IN = (tuple, list, dict)  # they hold items alone
_MISSING = object()
# by the id of what was met: the thing itself, so that its id stays its own, and what
# was made of it
Seen = dict[int, tuple[Any, Any]]


class RebuildError(ValueError):
    """A container that cannot be copied with other items in it."""


@dataclasses.dataclass(frozen=True)
class Attribute:
    """The place of what a container holds outside of its items."""

    name: str


def parts(nested: Any) -> list[tuple[Any, Any]] | None:
    """What a container holds, each with its place; None of a leaf."""
    # torch.Size is a tuple and text is a sequence, yet each is one leaf here.
    if isinstance(nested, (torch.Size, str, bytes)):
        return None
    if isinstance(nested, (tuple, list)):
        items = list(enumerate(nested))
    elif isinstance(nested, dict):
        items = list(nested.items())
    elif isinstance(nested, Mapping):
        # The items of others lie in their attributes.
        items = [] if _attributes(nested) else list(nested.items())
    elif _is_dataclass(nested):
        items = []
    else:
        return None
    if type(nested) in _BUILT_IN:
        return items
    beside = _attributes(nested)
    return [*items, *((Attribute(name), value) for name, value in beside.items())]


def map_leaves(
    nested: Any, change: Callable[[Any], Any], seen: Seen | None = None
) -> Any:
    """The same structure with `change` applied to each leaf; containers are copied,
    never edited.

    With an empty `seen`, what stands in several places is one thing afterwards, too.
    """
    if seen is not None and id(nested) in seen:
        return seen[id(nested)][1]
    held = parts(nested)
    made = (
        change(nested)
        if held is None
        else _rebuilt(nested, [(p, map_leaves(x, change, seen)) for p, x in held])
    )
    if seen is not None:
        seen[id(nested)] = (nested, made)
    return made


class Structure:
    """A nest that was taken apart once, to be made again and again with other leaves;
    what stands in several places is one thing each time.
    """

    def __init__(self, nested: Any) -> None:
        found = {id(leaf): leaf for leaf in leaves(nested)}
        self._leaves = list(found.values())
        # containers with the numbers of their parts: leaves come first, then these
        self._containers: list[tuple[Any, list[tuple[Any, int]]]] = []
        self._take_apart(nested, {key: n for n, key in enumerate(found)})

    def _take_apart(self, nested: Any, numbers: dict[int, int]) -> int:
        if id(nested) not in numbers:
            held = [(p, self._take_apart(x, numbers)) for p, x in parts(nested) or ()]
            numbers[id(nested)] = len(self._leaves) + len(self._containers)
            self._containers.append((nested, held))
        return numbers[id(nested)]

    def made(self, change: Callable[[Any], Any]) -> Any:
        """With `change` applied to each leaf."""
        made = [change(leaf) for leaf in self._leaves]
        for nested, held in self._containers:
            made.append(_rebuilt(nested, [(place, made[n]) for place, n in held]))
        return made[-1]


def _rebuilt(nested: Any, held: list[tuple[Any, Any]]) -> Any:
    """A container of the same type that holds this."""
    if type(nested) in (list, tuple):
        return type(nested)([part for _, part in held])
    if type(nested) is dict:
        return dict(held)
    beside = {p.name: part for p, part in held if isinstance(p, Attribute)}
    items = {p: part for p, part in held if not isinstance(p, Attribute)}
    try:
        made = _with_items(nested, items)
        if getattr(nested, "__dict__", None) is nested:
            made.__dict__ = made
        for name, part in beside.items():
            # This also sets the fields of a frozen dataclass.
            object.__setattr__(made, name, part)
    except Exception as problem:  # anybody's container: what it raises is not known
        kind, why = type(nested).__name__, str(problem).partition("\n")[0][:200]
        raise RebuildError(
            f"a {kind} cannot be made again with other items ({type(problem).__name__}: {why}); use a tuple, a list or "
            "a dict"
        ) from problem
    return made


def _with_items(nested: Any, items: dict[Any, Any]) -> Any:
    kind: Any = type(nested)
    if isinstance(nested, tuple):
        if kind.__module__.startswith("torch.return_types"):
            return kind(items.values())
        # Without the type's own constructor: it may take other arguments, or look at
        # them, as that of torch's packed sequences does.
        return tuple.__new__(kind, items.values())
    if isinstance(nested, dict) and _is_dataclass(nested):
        return kind(**items)  # Hugging Face's outputs are both
    # A copy keeps what the type holds besides its items, such as a default factory.
    made: Any = copy.copy(nested)
    if isinstance(nested, list):
        made[:] = items.values()
    elif isinstance(nested, dict):
        made.update(items)
    return made


def _is_dataclass(nested: Any) -> bool:
    return dataclasses.is_dataclass(nested) and not isinstance(nested, type)


def _attributes(nested: Any) -> dict[str, Any]:
    """What stands in a container's fields, its slots and its `__dict__`, in order."""
    held = getattr(nested, "__dict__", {})
    kind: Any = type(nested)
    found = {name: getattr(nested, name, _MISSING) for name in _declared(kind)}
    if held is not nested:  # some dictionaries are their own attributes
        found |= held
    return {name: part for name, part in found.items() if part is not _MISSING}


@functools.lru_cache(maxsize=1024)
def _declared(kind: type) -> tuple[str, ...]:
    """The names of a type's fields and slots."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    names = dict.fromkeys(field.name for field in fields)
    for each in kind.__mro__:
        own = vars(each).get("__slots__", ())
        for name in (own,) if isinstance(own, str) else own:
            # Python keeps private names under longer ones.
            is_private = name.startswith("__") and not name.endswith("__")
            names[f"_{each.__name__.lstrip('_')}{name}" if is_private else name] = None
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def leaves(nested: Any) -> list[Any]:
    """Every leaf, in order. Nothing is copied: a container may refuse other items."""
    held = parts(nested)
    return [nested] if held is None else [x for _, part in held for x in leaves(part)]


def tensors(nested: Any) -> list[Tensor]:
    return [leaf for leaf in leaves(nested) if isinstance(leaf, Tensor)]


def is_plain(leaf: Any) -> bool:
    """Neither a tensor nor an object that may hide one."""
    return isinstance(leaf, _PLAIN) and (
        isinstance(leaf, enum.Enum) or not getattr(leaf, "__dict__", None)
    )


def signature(nested: Any, seen: Seen | None = None) -> Any:
    """What two nests of one size share: their structure, the shape and type of each
    tensor, and all else as it is.

    With an empty `seen`, also which of them stand in several places.
    """
    if seen is not None and not is_plain(nested):
        if id(nested) in seen:
            return ("the same as", seen[id(nested)][1])
        seen[id(nested)] = (nested, len(seen))
    # Numbers do not count: calls with other numbers run the same plan.
    if isinstance(nested, Tensor):
        kinds = () if type(nested) in (Tensor, torch.nn.Parameter) else (type(nested),)
        return (*kinds, nested.shape, nested.dtype)
    held = parts(nested)
    if held is None:
        return _exactly(nested)
    # The type is part of it, because a module may treat a list and a tuple in different
    # ways.
    return (
        type(nested),
        *((_exactly(place), signature(part, seen)) for place, part in held),
    )


def _exactly(leaf: Any) -> Any:
    """Equal where two leaves are the same for every forward: 0.0 is not −0.0, and 1 is
    not True.
    """
    if isinstance(leaf, float):
        return (type(leaf), leaf.hex())
    if isinstance(leaf, complex):
        return (type(leaf), leaf.real.hex(), leaf.imag.hex())
    return (type(leaf), leaf)
