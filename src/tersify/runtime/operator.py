"""`tersify::run`: a compiled network as a torch operator, so that torch.compile and torch.export see one node."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tersify.runtime.compiled import CompiledModule

_NUMBERS = itertools.count(1)
_NETWORKS: weakref.WeakValueDictionary[int, CompiledModule] = weakref.WeakValueDictionary()


def number_of(network: CompiledModule) -> int:
    """Operators take numbers, not objects."""
    number = next(_NUMBERS)
    _NETWORKS[number] = network
    return number


def watched(inputs: Any = ()) -> bool:
    """Somebody looks at every operation: a tracer, a mode, or a subclass of Tensor."""
    return torch.compiler.is_compiling() or _dispatch_modes() > 0 or _tracing() or any(map(_is_wrapped, inputs))


def _no_modes() -> int:
    return 0


def _not_tracing() -> None:
    return None


# Private names of torch: where one is missing, nobody is taken to look.
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", _no_modes)
_tracing_state = getattr(torch._C, "_get_tracing_state", _not_tracing)
_is_functional = getattr(torch, "_is_functional_tensor", lambda x: False)
WATCHERS = (_dispatch_modes, _tracing_state)


def _tracing() -> bool:
    return _tracing_state() is not None


def _is_wrapped(x: Tensor) -> bool:
    return (type(x) is not Tensor and type(x) is not torch.nn.Parameter) or _is_functional(x)


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
    return [inputs[0].new_empty(value.shape, dtype=value.dtype) for value in _found(network).output_values(inputs)]


_LIBRARY.impl("run", _run, "CPU")
torch.library.register_fake("tersify::run", _run_fake, lib=_LIBRARY)
