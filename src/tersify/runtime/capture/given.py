"""What a call brings along, copied for a run that may change it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tersify.runtime.capture.refusal import CannotCapture
from tersify.runtime.capture.shared_memory import with_strides
from tersify.runtime.nested import Attribute, Seen, map_leaves, parts

Copy = Callable[[Tensor], Tensor]
# the way to a container, the container, and what it holds
Contents = tuple[str, Any, list[tuple[Any, Any]]]


def copied_in_order(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def copied_with_strides(tensor: Tensor) -> Tensor:
    return with_strides(tensor, tuple(tensor.shape), tensor.stride())


class Given:
    """The arguments with copies of all tensors in copies of all containers. What stands
    in several places is one thing in the copy, too.
    """

    def __init__(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        copy: Copy,
    ) -> None:
        self.tensors: list[Tensor] = []

        def copied(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            self.tensors.append(copy(leaf.detach()))
            return self.tensors[-1]

        self.args, self.kwargs = map_leaves((args, dict(kwargs)), copied, {})
        self._model = model
        named = [
            *zip(_names(model, len(args)), self.args, strict=True),
            *self.kwargs.items(),
        ]
        seen: Seen = {}
        self._before = [
            (name, found) for name, given in named for found in _contents(given, seen)
        ]

    def refuse_changes(self) -> None:
        """A graph holds tensors, so what a forward does to a container is lost."""
        for name, (way, container, before) in self._before:
            if not _are_the_same(parts(container) or [], before):
                kind = type(container).__name__
                what = f"the {kind} at {way} in" if way else f"the {kind} that is"
                self._refuse(f"changes {what} its argument {name!r}")
        if any(vars(tensor) for tensor in self.tensors):
            self._refuse("sets an attribute of a tensor that it is given")

    def _refuse(self, what: str) -> None:
        raise CannotCapture(
            f"the forward of {type(self._model).__name__} {what}, which a compiled network cannot repeat; let it "
            "change a copy, or return what is new"
        )


def _contents(nested: Any, seen: Seen, way: str = "") -> Iterator[Contents]:
    """Every container, each once."""
    held = parts(nested)
    if held is None or id(nested) in seen:
        return
    seen[id(nested)] = (nested, None)
    yield way, nested, held
    for place, part in held:
        step = f".{place.name}" if isinstance(place, Attribute) else f"[{place!r}]"
        yield from _contents(part, seen, way + step)


def _are_the_same(now: list[tuple[Any, Any]], before: list[tuple[Any, Any]]) -> bool:
    return len(now) == len(before) and all(
        place == known and part is held
        for (place, part), (known, held) in zip(now, before, strict=True)
    )


def _names(model: nn.Module, count: int) -> list[str]:
    """What the forward calls its positional arguments."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # it is no function of Python
        parameters = {}.values()
    names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    return (names + [f"number {i + 1}" for i in range(len(names), count)])[:count]
