"""Pieces of a tensor, and tensors that become one: cut, joined, stacked and rolled in
the engine, along every axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from against_torch import check
from torch import Tensor, nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")


class Between(nn.Module):
    """Something between two layers, so that it stands in the engine."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.into = nn.Conv2d(3, 6, 3, padding=1)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.into(x).relu())


def token(x: Tensor, axis: int) -> Tensor:
    """A constant that is the same for every item."""
    shape = [1 if i == axis else size for i, size in enumerate(x.shape[1:], start=1)]
    row = torch.linspace(-1, 1, math.prod(shape)).view(1, *shape)
    return row.expand(len(x), *shape)


ACTS: dict[str, Callable[[Tensor], Tensor]] = {
    **{
        f"cat along {axis}": lambda x, axis=axis: torch.cat([x, x * 2, x + 1], axis)
        for axis in (0, 1, 2, 3, -1)
    },
    **{
        f"stack along {axis}": lambda x, axis=axis: torch.stack([x, x * 2], axis)
        for axis in (0, 1, 2, 4, -1)
    },
    **{
        f"rolled along {axis}": lambda x, axis=axis: x.roll(3, axis)
        for axis in (0, 1, 2, -1)
    },
    "rolled along two": lambda x: torch.roll(x, (-2, 1), (2, 3)),
    "rolled all around": lambda x: torch.roll(x, (5, -7), (2, 3)),
    "rolled as one row": lambda x: torch.roll(x, 4),
    **{
        f"joined with a constant along {axis}": lambda x, axis=axis: torch.cat(
            [token(x, axis), x], axis
        )
        for axis in (1, 2, 3)
    },
    "joined with constants on both sides": lambda x: torch.cat(
        [token(x, 2), x, token(x, 2) * 3], 2
    ),
    "split": lambda x: torch.cat([y * (i + 1) for i, y in enumerate(x.split(2, 1))], 1),
    "split of sizes": lambda x: x.split([1, 3, x.shape[2] - 4], 2)[1],
    "chunk": lambda x: x.chunk(2, -1)[1] + 1,
    "unbind": lambda x: x.unbind(3)[2] * x.unbind(3)[0],
}
IN_TORCH = {"rolled as one row"}


@pytest.mark.parametrize("name", ACTS)
def test_it_makes_what_torch_makes(name):
    model, x = Between(ACTS[name]).eval(), torch.randn(2, 3, 5, 7)
    fast = compile(model, x, strict=True, threads=2)
    assert ("0 torch calls" in fast.plan.describe()) == (name not in IN_TORCH)
    check(fast, model, x)
    check(fast, model, torch.randn(2, 3, 9, 7))


def test_rows_of_one_axis_are_joined():
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(40, 40)

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            return self.layer(torch.cat([y[7:], y[:7]]))

    model, x = Rows().eval(), torch.randn(40)
    fast = compile(model, x, strict=True)
    assert "0 torch calls" in fast.plan.describe()
    check(fast, model, x)


def test_an_empty_tensor_still_joins_any_other():
    model = Between(lambda x: torch.cat([x.new_zeros(0), x, x[:, :0]], 1)).eval()
    x = torch.randn(2, 3, 5, 7)
    check(compile(model, x), model, x)


def test_whole_numbers_roll_as_they_are():
    model, ids = nn.Sequential(nn.Embedding(9, 4)).eval(), torch.randint(0, 9, (2, 5))

    class Rolled(nn.Module):
        def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
            return model(ids), ids.roll(2, 1)

    rolled = Rolled().eval()
    check(compile(rolled, ids), rolled, ids)
