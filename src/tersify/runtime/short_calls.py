"""Operators of torch by their usual functions: those take half the time that the
operator itself does to call.

Which function is the same is not known from names alone. So the first run of a call
tries both, and the function is kept only where it gave the same.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_IN_C = (types.BuiltinFunctionType, types.MethodDescriptorType)


class Trial:
    """An operator that is called once beside its function; afterwards `best` is the one
    to call.
    """

    def __init__(self, target: Callable[..., Any]) -> None:
        self._target = target
        self.best = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = self._target(*args, **kwargs)
        # The result of the operator is returned in any case, so a trial that fails
        # costs time and nothing else.
        function = _function_of(self._target)
        if function is None:
            return made
        try:
            again = function(*args, **kwargs)
        except (TypeError, ValueError, RuntimeError):  # it takes other arguments
            return made
        if _same(made, again):
            self.best = function
        return made


def _function_of(target: Callable[..., Any]) -> Callable[..., Any] | None:
    """The function of the same name that is written in C, if there is one; random
    numbers must not be drawn twice.
    """
    schema = getattr(target, "_schema", None)
    if schema is None or not schema.name.startswith("aten::"):
        return None
    # A second call would change the arguments again, or move the random state.
    if schema.is_mutable or torch.Tag.nondeterministic_seeded in getattr(
        target, "tags", ()
    ):
        return None
    name = schema.name.removeprefix("aten::")
    found = (getattr(place, name, None) for place in (torch, F, Tensor))
    return next((function for function in found if isinstance(function, _IN_C)), None)


def _same(made: Any, again: Any) -> bool:
    if isinstance(made, Tensor) and isinstance(again, Tensor):
        # Equal strides as well: a later call may view the memory.
        if (made.shape, made.stride(), made.dtype) != (
            again.shape,
            again.stride(),
            again.dtype,
        ):
            return False
        # NaN is not equal to itself
        equal = (made == again) | ((made != made) & (again != again))
        return bool(equal.all())
    if isinstance(made, (tuple, list)) and isinstance(again, (tuple, list)):
        return len(made) == len(again) and all(map(_same, made, again))
    return type(made) is type(again) and bool(made == again)
