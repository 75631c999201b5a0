"""Buffers of one memory, and buffers that only some sizes of the input change."""

from __future__ import annotations

import copy

import pytest
import torch
from against_torch import compare
from torch import Tensor, nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")


class OneMemory(nn.Module):
    """Two buffers of one memory, and one of them changes."""

    def __init__(self) -> None:
        super().__init__()
        memory = torch.arange(6.0)
        self.register_buffer("a", memory[:4])
        self.register_buffer("b", memory[2:])

    def forward(self, x: Tensor) -> Tensor:
        old = self.b.clone()
        self.a.add_(x)
        return self.b * x + old


def test_buffers_of_one_memory_change_together_or_are_refused():
    model = OneMemory().eval()
    twin = copy.deepcopy(model)
    try:
        fast = compile(model, torch.randn(4))
    except ValueError:
        return
    for _ in range(3):
        x = torch.randn(4)
        compare(fast(x), twin(x))
        compare(dict(model.named_buffers()), dict(twin.named_buffers()))


class CountingLong(nn.Module):
    """A buffer that only long inputs change."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 2:
            self.n.add_(1)
        return x * self.n


@pytest.mark.parametrize("first", [2, 3])
def test_a_buffer_that_one_size_changes_is_read_anew_by_the_others(first):
    model = CountingLong().eval()
    twin = copy.deepcopy(model)
    fast = compile(model, torch.randn(first, 3))
    for length in (2, 3, 2, 4, 1, 3, 2, 1):
        x = torch.randn(length, 3)
        compare(fast(x), twin(x))
        compare(model.n, twin.n, what="buffer")


class CountingInSilence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(3))

    def forward(self, x: Tensor) -> None:
        self.n.add_(x)


def test_a_forward_that_returns_nothing_runs_once_a_call():
    model = CountingInSilence().eval()
    twin = copy.deepcopy(model)
    fast = compile(model, torch.randn(3))
    for _ in range(3):
        x = torch.randn(3)
        assert fast(x) is None
        twin(x)
        compare(model.n, twin.n)
