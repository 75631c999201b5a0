"""What the tests of a capture share: the recorded graph run by torch, and a compiled
network, against the module.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from tersify.runtime import compile
from tersify.runtime.nested import leaves


def assert_like_the_module(
    model: nn.Module, *inputs: Any, calls: int = 3, **named: Any
) -> Any:
    """Some calls in a row: the same results, the same changes of inputs and of the
    module's own tensors.
    """
    model.eval()
    plain = copy.deepcopy(model)
    before = _state(model)
    fast = compile(model, named or inputs, threads=1)
    _assert_equal(_state(model), before, "compile changed the module")
    for _ in range(calls):
        ours, theirs = copy.deepcopy((inputs, named)), copy.deepcopy((inputs, named))
        with torch.no_grad():
            made, wanted = fast(*ours[0], **ours[1]), plain(*theirs[0], **theirs[1])
        _assert_equal(made, wanted, "results")
        _assert_equal(ours, theirs, "inputs afterwards")
        _assert_equal(_state(model), _state(plain), "the module's tensors afterwards")
    return fast


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: tensor.detach().clone()
        for name, tensor in model.state_dict(keep_vars=True).items()
    }


def _assert_equal(made: Any, wanted: Any, what: str) -> None:
    assert isinstance(wanted, Tensor) or type(made) is type(wanted), what
    ours, theirs = leaves(made), leaves(wanted)
    assert len(ours) == len(theirs), what
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(b, Tensor):
            assert a.shape == b.shape, what
            assert a.dtype == b.dtype, what
            a, b = a.detach().double(), b.detach().double()
            top = float(b.abs().max()) if b.numel() else 0.0
            assert torch.allclose(
                a, b, rtol=0, atol=2e-5 * top + 1e-30, equal_nan=True
            ), what
        else:
            assert a == b, what
