"""Slices, permutations, paddings, repetitions and broadcasts stay in the engine and are
right for every batch.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tersify.runtime import compile
from tersify.runtime.ops import Move
from tersify.runtime.ops.move import Axis

pytest.importorskip("tersify._runtime")


class Moved(nn.Module):
    """A layer, something that moves its numbers, and a layer that keeps the engine
    busy.
    """

    def __init__(self, move) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.move = move
        self.register_buffer("places", torch.randn(1, 8, 6, 6))
        self.register_buffer("channels", torch.randn(8, 1, 1))
        self.register_buffer("columns", torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.move(self, self.first(x)).relu()


MOVES = {
    "option A": lambda m, y: F.pad(y[:, :, ::2, ::2], (0, 0, 0, 0, 4, 4)),
    "cropped": lambda m, y: F.pad(y, (-1, 2, 0, -3), value=0.5),
    "sliced": lambda m, y: y[:, 1:7:3, -4:, :5],
    "a channel": lambda m, y: y[:, 3],
    "the last row": lambda m, y: y[:, :, -1],
    "turned": lambda m, y: y.permute(0, 3, 1, 2),
    "turned twice": lambda m, y: y.transpose(1, 2).transpose(2, 3)[:, 1:],
    "turned and sliced": lambda m, y: y.permute(0, 2, 3, 1)[:, ::2, 1:],
    "padded and sliced": lambda m, y: F.pad(y, (2, 2))[:, :, :, 1:9:2],
    "padded twice": lambda m, y: F.pad(F.pad(y, (1, 0, 0, 2)), (0, 1, 3, 0), value=2.0),
    "padded and one column": lambda m, y: F.pad(y, (2, 2))[:, :, :, 1],
    "flipped": lambda m, y: y.flip(2, 3),
    "the batch comes last": lambda m, y: y.permute(1, 2, 3, 0),
    "the batch changes places": lambda m, y: y.transpose(0, 1),
    "one of the batch": lambda m, y: y[0],
    "repeated": lambda m, y: y[:, :1].expand(-1, 5, -1, -1),
    "times its means": lambda m, y: y * y.mean((2, 3), keepdim=True).sigmoid(),
    "less its means": lambda m, y: y - y.mean((2, 3), keepdim=True),
    "its means less it": lambda m, y: y.mean((2, 3), keepdim=True) - y,
    "less itself turned": lambda m, y: y - y.transpose(2, 3),
    "plus twice itself": lambda m, y: torch.add(y, y.flip(2), alpha=2),
    "plus places": lambda m, y: y + m.places,
    "less channels": lambda m, y: y - m.channels,
    "times columns": lambda m, y: y * m.columns,
}


@pytest.mark.usefixtures("kernels_win")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MOVES)
def test_numbers_arrive_where_torch_puts_them(name, threads):
    model = Moved(MOVES[name]).eval()
    fast = compile(model, torch.randn(2, 3, 6, 6), threads=threads, strict=True)
    assert "0 torch calls" in fast.plan.describe(), fast.plan.describe()
    for batch in (2, 1, 5):
        x = torch.randn(batch, 3, 6, 6)
        with torch.no_grad():
            wanted = model(x)
        made = fast(x)
        assert made.shape == wanted.shape
        assert (made - wanted).abs().max() <= 2e-5 * wanted.abs().max()


@pytest.mark.usefixtures("kernels_win")
def test_moves_in_a_row_become_one():
    for name in ("turned and sliced", "padded and sliced", "padded twice"):
        fast = compile(Moved(MOVES[name]).eval(), torch.randn(1, 3, 6, 6))
        wanted = 2 if name == "padded twice" else 1  # they fill with different numbers
        assert sum(isinstance(node.op, Move) for node in fast.plan.nodes) == wanted


class OptionA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 16, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        return (self.second(y) + F.pad(y[:, :, ::2, ::2], (0, 0, 0, 0, 4, 4))).relu()


@pytest.mark.usefixtures("kernels_win")
@pytest.mark.parametrize("size", [6, 7])
def test_a_shortcut_between_convolutions_is_one_of_them_and_takes_the_sum(size):
    model, x = OptionA().eval(), torch.randn(2, 3, size, size)
    fast = compile(model, x, strict=True)
    assert [node.kind for node in fast.plan.nodes] == ["conv", "conv", "conv"]
    with torch.no_grad():
        wanted = model(x)
    assert (fast(x) - wanted).abs().max() <= 2e-5 * wanted.abs().max()


def test_a_move_that_leaves_its_value_is_refused():
    runtime = pytest.importorskip("tersify._runtime")
    engine = runtime.Engine(runtime.Workspace(runtime.isas()[-1], 1))
    value = engine.input(2, (3, 4, 5))
    for axes, offset in (
        ([(60, 0, 60, 1)], 1),
        ([(2, 0, 2, 60)], 0),
        ([(60, 0, 60, -1)], 58),
        ([(60, 5, 61, 1)], 0),
        ([(59, 0, 59, 1)], 0),
    ):
        with pytest.raises(ValueError, match="move"):
            engine.move(value, (1, 1, 60), axes, offset, 0.0)


def test_a_move_of_what_was_filled_is_not_read_from_the_source():
    padded = Move(source_shape=(4,), axes=(Axis(8, 0, -2, 1, 2, 6),))
    taken = Move(source_shape=(8,), axes=(Axis(1, None, high=1),), fixed=((0, 0),))
    assert taken.after(padded) is None
