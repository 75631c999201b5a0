"""Buffers that count, rows that are scaled in place, modes and gradients: compile
leaves a module as it found it.
"""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from against_torch import unchanged_by_compile
from torch import Tensor, nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")


class Counting(nn.Module):
    """A buffer that counts the calls and takes part in them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("n", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.n.add_(1)
        y = self.linear(x)
        self.mean.lerp_(y.mean(0), 0.1)
        return y * self.n + self.mean


@pytest.mark.filterwarnings("ignore:precision=.int8. changes nothing")
def test_compile_leaves_counting_buffers_as_they_are():
    model = Counting().eval()
    before = copy.deepcopy(model.state_dict())
    for precision in ("fp32", "int8", "auto"):
        compile(
            model,
            torch.randn(2, 4),
            precision=precision,
            calibration=[torch.randn(3, 4)],
        )
        assert unchanged_by_compile(model, before), precision


def test_a_buffer_counts_compiled_calls_as_it_counts_plain_ones():
    model = Counting().eval()
    twin = copy.deepcopy(model)
    fast = compile(model, torch.randn(2, 4))
    with torch.no_grad():
        for batch in (2, 2, 5, 1, 2):
            x = torch.randn(batch, 4)
            assert torch.allclose(fast(x), twin(x), atol=1e-5)
            assert torch.equal(model.n, twin.n)
            assert torch.allclose(model.mean, twin.mean, atol=1e-6)


class Reassigning(nn.Module):
    """State kept by assignment instead of in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.last
        self.last = x.clone()
        return y


def test_a_reassigned_buffer_is_followed_or_refused():
    model = Reassigning().eval()
    twin = copy.deepcopy(model)
    before = copy.deepcopy(model.state_dict())
    fast = None
    with contextlib.suppress(ValueError):
        fast = compile(model, torch.randn(2, 4))
    assert unchanged_by_compile(model, before)
    if fast is None:
        return
    for _ in range(3):
        x = torch.randn(2, 4)
        assert torch.allclose(fast(x), twin(x), atol=1e-6)


@pytest.mark.parametrize("max_norm", [0.5, 2.0])
def test_an_embedding_with_a_largest_norm_is_right_and_compile_does_not_scale_its_rows(
    max_norm,
):
    model = nn.Sequential(
        nn.Embedding(11, 6, max_norm=max_norm), nn.Linear(6, 3)
    ).eval()
    with torch.no_grad():
        model[0].weight.mul_(3)
    before = copy.deepcopy(model.state_dict())
    twin = copy.deepcopy(model)
    fast = compile(model, torch.randint(0, 11, (2, 4)))
    assert unchanged_by_compile(model, before)
    with torch.no_grad():
        for batch in (2, 5):
            tokens = torch.randint(0, 11, (batch, 4))
            wanted = twin(tokens)
            assert (fast(tokens) - wanted).abs().max() <= 2e-5 * wanted.abs().max()


class Training(nn.Module):
    """Norms a batch by its own mean, also in eval mode, and learns from it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("variance", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.batch_norm(
            x, None, None, self.mean, self.variance, True, 0.1, 1e-5, False
        )


def test_an_operation_that_changes_a_buffer_and_returns_something_else_is_right():
    model = Training().eval()
    twin = copy.deepcopy(model)
    fast = compile(model, torch.randn(3, 4))
    for batch in (3, 3, 5, 3):
        x = torch.randn(batch, 4)
        assert torch.allclose(fast(x), twin(x), atol=1e-5)
        assert torch.allclose(model.mean, twin.mean, atol=1e-6)
        assert torch.allclose(model.variance, twin.variance, atol=1e-6)


def test_compile_leaves_the_mode_the_gradients_and_the_hooks_of_a_module_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model[0].requires_grad_(False)
    model[2].eval()
    modes = [module.training for module in model.modules()]
    wants = [parameter.requires_grad for parameter in model.parameters()]
    before = copy.deepcopy(model.state_dict())
    compile(model, torch.randn(3, 4))
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == wants
    assert unchanged_by_compile(model, before)
    assert all(parameter.grad is None for parameter in model.parameters())
