"""`tersify::run`: a compiled network as a torch operator, so that torch.compile and
torch.export see one node.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tersify.runtime.transforms import is_transformed

if TYPE_CHECKING:
    from tersify.runtime.compiled import CompiledModule

_NUMBERS = itertools.count(1)
_NETWORKS: weakref.WeakValueDictionary[int, CompiledModule] = (
    weakref.WeakValueDictionary()
)


def number_of(network: CompiledModule) -> int:
    """Operators take numbers, not objects."""
    # The dictionary is weak: an operator in a traced graph must not keep the network
    # alive.
    number = next(_NUMBERS)
    _NETWORKS[number] = network
    return number


def watched(inputs: Any = ()) -> bool:
    """Somebody looks at every operation: a tracer, a mode, or a subclass of Tensor."""
    return (
        torch.compiler.is_compiling()
        or _dispatch_modes() > 0
        or _tracing()
        or any(map(_is_wrapped, inputs))
    )


def _of_torch(name: str, otherwise: Any) -> Callable[..., Any]:
    """A private function of torch; where it is missing, nobody is taken to look."""
    private = getattr(torch, "_C", None)
    found: Callable[..., Any] = (
        getattr(private, name, None)
        or getattr(torch, name, None)
        or (lambda *_: otherwise)
    )
    return found


_dispatch_modes = _of_torch("_len_torch_dispatch_stack", 0)
_tracing_state = _of_torch("_get_tracing_state", None)
_is_functional = _of_torch("_is_functional_tensor", False)


def _autocasting_on_the_cpu() -> bool:
    return torch.is_autocast_enabled("cpu")


# Autocast chooses other types than those of the example.
_autocasting = getattr(
    getattr(torch, "_C", None), "_is_any_autocast_enabled", _autocasting_on_the_cpu
)
WATCHERS = (_dispatch_modes, _tracing_state, _autocasting)


def _tracing() -> bool:
    return _tracing_state() is not None


def _is_wrapped(x: Any) -> bool:
    if not isinstance(x, Tensor):
        return False
    # A subclass may watch what happens to it. A functional tensor is a wrapper of C++
    # that has the plain type.
    if type(x) not in (Tensor, torch.nn.Parameter):
        return True
    return bool(_is_functional(x)) or is_transformed(x)


_LIBRARY = torch.library.Library("tersify", "FRAGMENT")
_LIBRARY.define("run(Tensor[] inputs, int network) -> Tensor[]")


def _found(number: int) -> CompiledModule:
    network = _NETWORKS.get(number)
    if network is None:
        raise ValueError(f"network {number} no longer exists; compile it again")
    return network


def _run(inputs: list[Tensor], network: int) -> list[Tensor]:
    return _found(network).run_flat(inputs)


def _run_fake(inputs: list[Tensor], network: int) -> list[Tensor]:
    return [
        # Shapes only: a tracer asks what would come out, without running it.
        inputs[0].new_empty(value.shape, dtype=value.dtype)
        for value in _found(network).output_values(inputs)
    ]


_LIBRARY.impl("run", _run, "CPU")
torch.library.register_fake("tersify::run", _run_fake, lib=_LIBRARY)
