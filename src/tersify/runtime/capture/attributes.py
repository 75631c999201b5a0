"""What the modules of a model hold beside parameters, buffers and submodules, and what
a run changed of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tersify.runtime.capture.recorder import Recorder
from tersify.runtime.nested import leaves

# a forward may add to them without setting an attribute
_GROWING = (list, set, deque, dict)


class Attributes:
    """The attributes of every module as they stand now, and the contents of those that
    are containers.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._held = _attributes(model)
        self._contents = {
            key: _contents(value)
            for key, value in self._held.items()
            if isinstance(value, _GROWING)
        }

    def changed(self, recorder: Recorder) -> str:
        """The first that holds something else by now: a forward that keeps something
        for its next call.
        """
        for key, value in _attributes(self._model).items():
            known, inside = self._held.get(key), _contents(value)
            if key in self._held and _is_the_same(
                inside, self._contents.get(key, known), recorder
            ):
                continue
            # Other objects are left alone: a logger may change at every call.
            if any(isinstance(leaf, (Tensor, int, float)) for leaf in leaves(inside)):
                return ".".join(("self", *(part for part in key if part)))
        return ""

    def restore(self) -> None:
        """The same objects with the same contents stand in all attributes again."""
        for name, module in self._model.named_modules():
            # New attributes go. The list is made first, because deleting changes the
            # dict.
            for key in [key for key in vars(module) if _counts(key, vars(module)[key])]:
                if (name, key) not in self._held:
                    delattr(module, key)
        modules = dict(self._model.named_modules())
        for (name, key), value in self._held.items():
            if vars(modules[name]).get(key) is not value:
                setattr(modules[name], key, value)
        for key, inside in self._contents.items():
            container = self._held[key]
            # The same container is filled again: others may hold it, too.
            container.clear()
            if isinstance(container, (list, deque)):
                container.extend(inside[1])
            else:
                container.update(
                    zip(inside[0], inside[1], strict=True) if inside[0] else inside[1]
                )


def _attributes(model: nn.Module) -> dict[tuple[str, str], Any]:
    return {
        (name, key): value
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if _counts(key, value)
    }


def _counts(key: str, value: Any) -> bool:
    # Names with an underscore are mostly torch's own book-keeping, but a forward may
    # keep a tensor there.
    return not key.startswith("_") or isinstance(value, Tensor)


def _contents(value: Any) -> Any:
    """Keys and items of a container; anything else as it is."""
    if isinstance(value, Mapping):
        return (tuple(value.keys()), tuple(value.values()))
    return ((), tuple(value)) if isinstance(value, (list, set, deque)) else value


def _is_the_same(value: Any, before: Any, recorder: Recorder) -> bool:
    """A tensor may be computed anew from parameters alone, as hooks of weight norm do."""
    if value is before:
        return True
    if isinstance(value, Tensor) and isinstance(before, Tensor):
        # torch.equal raises for some pairs of types.
        if (value.shape, value.dtype) != (before.shape, before.dtype):
            return False
        # What depends on the inputs differs from call to call, though it be equal now.
        return not recorder.is_live(value) and torch.equal(value, before)
    # Contents of containers arrive as tuples of keys and items.
    if isinstance(value, tuple) and isinstance(before, tuple):
        if len(value) != len(before):
            return False
        pairs = zip(value, before, strict=True)
        return all(_is_the_same(a, b, recorder) for a, b in pairs)
    # Other objects count as changed when they are not the very same: their equality may
    # mean anything, or cost much.
    if not isinstance(value, (int, float, str)) or type(value) is not type(before):
        return False
    return bool(value == before)
