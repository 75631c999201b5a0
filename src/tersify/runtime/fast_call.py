"""The C++ function that runs a known call again, without a way through Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from tersify.runtime.torch_operator import WATCHERS

if TYPE_CHECKING:
    from tersify.runtime.bound_network import Bound

HOOKS_OF_ALL_MODULES = tuple(
    getattr(torch_module, name, {})
    for name in (
        "_global_forward_hooks",
        "_global_forward_pre_hooks",
        "_global_backward_hooks",
        "_global_backward_pre_hooks",
    )
)


def nobody_looks_at(module: nn.Module) -> bool:
    """No hook and no other `forward` wants to see a call."""
    # An own `forward` in the instance's dict is somebody's patch.
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or any(HOOKS_OF_ALL_MODULES)
        or "forward" in module.__dict__
    )


def fast_call(extension: ModuleType) -> Any:
    """A C++ function that runs again what ran before; None where this torch does not
    describe tensors to C++.
    """
    # The C++ function asks the hooks and watchers itself at every call, and gives None
    # where any of them wants to see it.
    return _made(extension, one=True, hooks=HOOKS_OF_ALL_MODULES, watchers=WATCHERS)


def remember(
    fast: Any, bound: Bound, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """The fast call knows positional tensors by their shapes and types, so it must not
    see a network that is bound to strides, to keywords, to autocast or to an input
    given twice, or that writes.
    """
    if (
        fast is None
        or kwargs
        or any(type(x) is not Tensor for x in args)
        or len(set(map(id, args))) < len(args)
        or bound.looks_at_memory
        or torch.is_autocast_enabled("cpu")
    ):
        return
    segment = bound.only_segment()
    if segment is not None:
        shapes = tuple(bound.graph.values[name].shape for name in bound.graph.inputs)
        fast.remember(shapes, segment.engine, blanks(segment.shapes))
    else:
        fast.remember_function(args, bound.call_unseen)


def fast_part(
    extension: ModuleType,
    engine: Any,
    inputs: Sequence[tuple[int, ...]],
    outputs: Sequence[tuple[int, ...]],
) -> Any:
    """The same for one engine in the middle of a network, with a list of its outputs."""
    call = _made(extension, one=False)
    if call is None:
        return None
    call.remember(tuple(inputs), engine, blanks(outputs))
    return call.run


def _made(
    extension: ModuleType,
    *,
    one: bool,
    hooks: tuple[Any, ...] = (),
    watchers: tuple[Any, ...] = (),
) -> Any:
    exchange = getattr(Tensor, "__dlpack_c_exchange_api__", None)  # since torch 2.10
    if exchange is None:
        return None
    return extension.FastCall(Tensor, exchange, torch.empty_like, one, hooks, watchers)


def blanks(shapes: Sequence[tuple[int, ...]]) -> tuple[Tensor, ...]:
    """Tensors without memory: they only say what an output is like."""
    blanks = tuple(
        torch.empty(shape, dtype=torch.float32, device="cpu") for shape in shapes
    )
    for blank in blanks:
        # The memory is given back; shape, strides and type stay.
        blank.untyped_storage().resize_(0)
    return blanks
