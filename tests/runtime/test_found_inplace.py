"""Writes in place, through views and into inputs, happen as torch makes them happen."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from against_torch import check
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
    assert all(torch.equal(a, b) for a, b in zip(example, shown, strict=True)), (
        "compile wrote into the example"
    )
    for batch in (2, 3, 1):
        check(fast, model, *inputs(batch))
    strided = tuple(x.mT for x in inputs(3))
    check(fast, model, *strided)
