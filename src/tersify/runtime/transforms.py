"""Tensors that stand for others: nested ones, and those of torch.func's transforms (vmap, grad, jvp).

The names are private, so a torch without one of them is taken to transform nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_FUNCTORCH = getattr(getattr(torch, "_C", None), "_functorch", None)


def _never(*_: Any) -> None:
    return None


_innermost = getattr(_FUNCTORCH, "peek_interpreter_stack", _never)
_is_batched = getattr(_FUNCTORCH, "is_batchedtensor", _never)
_is_tracking = getattr(_FUNCTORCH, "is_gradtrackingtensor", _never)


def transforming() -> bool:
    """Whether this runs inside a transform."""
    return _innermost() is not None


def is_transformed(x: Any) -> bool:
    """Whether a tensor is one that a transform handed in: it has no memory of its own."""
    return bool(_is_batched(x) or _is_tracking(x))


def refuse_indirect(x: Tensor) -> None:
    """Tensors whose memory does not hold the numbers they stand for."""
    if is_transformed(x):
        raise ValueError(
            "torch.func (vmap, grad, jvp) cannot go through a compiled network; transform the module it was compiled "
            "from, or give all items in one batch"
        )
    if x.is_quantized or x.is_nested:
        raise ValueError(
            "inputs must be plain tensors, got a quantized or nested one; use .dequantize(), or pad it"
        )
