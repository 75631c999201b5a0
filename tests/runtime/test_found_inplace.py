"""Writes in place, through views, into inputs and into buffers, happen as torch makes them happen."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable

import pytest
import torch
from against_torch import check, unchanged_by_compile
from torch import Tensor, nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")


def column_set(y: Tensor) -> Tensor:
    y[:, 0] = 0
    return y


def view_added(y: Tensor) -> Tensor:
    v = y[:, 0]
    v.add_(1)
    return y


def flat_view_rectified(y: Tensor) -> Tensor:
    y.view(len(y), -1).relu_()
    return y


def transposed_view_scaled(y: Tensor) -> Tensor:
    y.transpose(1, 2)[:, ::2].mul_(3)
    return y


def row_copied_from_another(y: Tensor) -> Tensor:
    y[:, 1].copy_(y[:, 2])
    return y


def chunk_negated(y: Tensor) -> Tensor:
    y.chunk(2, dim=1)[1].neg_()
    return y


def view_read_after_its_base_changed(y: Tensor) -> Tensor:
    v = y[:, :2]
    y.mul_(2)
    return v + 1


def view_of_a_view(y: Tensor) -> Tensor:
    y[:, 1:][:, :, 1:].add_(5)
    return y.sum(1)


def base_read_before_and_after(y: Tensor) -> Tensor:
    before = y + 0
    y[:, 0].fill_(7)
    return before - y


def masked(y: Tensor) -> Tensor:
    return y.masked_fill_(y > 0.5, -1.0)


def broadcast_written(y: Tensor) -> Tensor:
    y.add_(y[:, :1].clone())
    return y


def split_and_swapped(y: Tensor) -> Tensor:
    a, b = y.split([1, y.shape[1] - 1], dim=1)
    a.sub_(b.sum(1, keepdim=True))
    return y


def activation_in_place_on_a_view(y: Tensor) -> Tensor:
    torch.nn.functional.leaky_relu_(y.flatten(1)[:, 3:], 0.2)
    return y


def out_argument(y: Tensor) -> Tensor:
    z = torch.empty_like(y)
    torch.mul(y, 2, out=z)
    torch.add(z, y, out=z[:])
    return z


WRITES = [
    column_set,
    view_added,
    flat_view_rectified,
    transposed_view_scaled,
    row_copied_from_another,
    chunk_negated,
    view_read_after_its_base_changed,
    view_of_a_view,
    base_read_before_and_after,
    masked,
    broadcast_written,
    split_and_swapped,
    activation_in_place_on_a_view,
    out_argument,
]


class Writing(nn.Module):
    """A layer, a write into its result, and a layer that reads what was written."""

    def __init__(self, write: Callable[[Tensor], Tensor], last: bool) -> None:
        super().__init__()
        self.first = nn.Conv1d(3, 4, 3, padding=1)
        self.write = write
        self.last = nn.ReLU() if last else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.write(self.first(x)))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_through_a_view_reaches_what_it_is_a_view_of(write, last):
    model = Writing(write, last).eval()
    fast = compile(model, torch.randn(2, 3, 6))
    for batch in (2, 1, 5):
        assert check(fast, model, torch.randn(batch, 3, 6)) <= 2e-5


class Applied(nn.Module):
    def __init__(self, work: Callable[..., object]) -> None:
        super().__init__()
        self.work = work

    def forward(self, *inputs: Tensor) -> object:
        return self.work(*inputs)


INPUT_WRITES: dict[str, Callable[..., object]] = {
    "scaled": lambda x: x.mul_(2),
    "scaled_and_forgotten": lambda x: (x.mul_(2), None)[1],
    "through_a_view": lambda x: (x[:, 0].add_(1), x.sum(1))[1],
    "rectified": lambda x: torch.relu_(x) + 1,
    "the_second_input": lambda x, y: (y.add_(x), x @ x.mT)[1],
    "both": lambda x, y: (x.add_(1), y.mul_(x))[1],
}


@pytest.mark.parametrize("write", INPUT_WRITES)
def test_a_write_into_an_input_reaches_the_caller(write):
    model = Applied(INPUT_WRITES[write]).eval()
    count = 2 if write in ("the_second_input", "both") else 1

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return tuple(torch.randn(batch, 4, 4) for _ in range(count))

    example = inputs(2)
    shown = copy.deepcopy(example)
    fast = compile(model, example)
    assert all(torch.equal(a, b) for a, b in zip(example, shown, strict=True)), "compile wrote into the example"
    for batch in (2, 3, 1):
        check(fast, model, *inputs(batch))
    strided = tuple(x.mT for x in inputs(3))
    check(fast, model, *strided)


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


def test_compile_leaves_counting_buffers_as_they_are():
    model = Counting().eval()
    before = copy.deepcopy(model.state_dict())
    for precision in ("fp32", "int8", "auto"):
        compile(model, torch.randn(2, 4), precision=precision, calibration=[torch.randn(3, 4)])
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
def test_an_embedding_with_a_largest_norm_is_right_and_compile_does_not_scale_its_rows(max_norm):
    model = nn.Sequential(nn.Embedding(11, 6, max_norm=max_norm), nn.Linear(6, 3)).eval()
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
