"""Recurrent layers that begin with a state and give theirs back, as streaming models
do, and single cells: in the engine, against torch itself.
"""

from __future__ import annotations

import pytest
import torch
from against_torch import check
from torch import Tensor, nn

from tersify.runtime import compile
from tersify.runtime.nested import leaves

pytest.importorskip("tersify._runtime")

FEATURES, SIZE = 12, 20
DEPTHS = [
    {"batch_first": True},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 2, "batch_first": True, "bidirectional": True, "bias": False},
]


class Streaming(nn.Module):
    """Takes states and gives everything back."""

    def __init__(self, kind, *, zeros: float, **options) -> None:
        super().__init__()
        self.layers = kind(FEATURES, SIZE, **options)
        thin_(self, zeros)

    def forward(self, x: Tensor, *states: Tensor):
        given = states if isinstance(self.layers, nn.LSTM) else states[0]
        return self.layers(x, given)


def thin_(model: nn.Module, zeros: float) -> None:
    for weight in model.parameters():
        if weight.ndim == 2:
            weight.data *= torch.rand_like(weight) >= zeros


def states_of(kind, options: dict, batch: int) -> tuple[Tensor, ...]:
    runs = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    return tuple(
        torch.randn(runs, batch, SIZE) for _ in range(2 if kind is nn.LSTM else 1)
    )


def in_the_engine(model: nn.Module, *inputs: Tensor, **options):
    fast = compile(model.eval(), inputs, strict=True, **options)
    assert "0 torch calls" in fast.plan.describe()
    check(fast, model, *inputs)
    return fast


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("zeros", [0.0, 0.9])
@pytest.mark.parametrize("options", DEPTHS)
def test_a_layer_goes_on_from_a_given_state_and_gives_its_last_back(
    isa, kind, zeros, options
):
    model = Streaming(kind, zeros=zeros, **options)
    for batch, steps in ((1, 1), (3, 5), (4, 1)):
        shape = (
            (batch, steps, FEATURES)
            if options.get("batch_first")
            else (steps, batch, FEATURES)
        )
        states = states_of(kind, options, batch)
        in_the_engine(model, torch.randn(shape), *states, threads=2)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_sequence_in_pieces_is_the_whole_sequence(kind):
    model = Streaming(kind, zeros=0.9, num_layers=2, batch_first=True).eval()
    x = torch.randn(2, 9, FEATURES)
    zeros = [torch.zeros_like(s) for s in states_of(kind, {"num_layers": 2}, 2)]
    fast = compile(model, (x[:, :3], *zeros), strict=True)
    with torch.no_grad():
        wanted, _ = model(x, *zeros)
    made, states = [], zeros
    for piece in x.split(3, 1):
        out, last = fast(piece, *states)
        made.append(out)
        states = list(leaves(last))
    apart = (torch.cat(made, 1) - wanted).abs().max()
    assert apart <= 2e-5 * wanted.abs().max()


@pytest.mark.parametrize("batch", [1, 2, 5, 7, 8, 13, 21, 70])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_items_that_share_what_is_read_of_the_matrix_stay_apart(isa, kind, batch):
    model = Streaming(kind, zeros=0.0, batch_first=True)
    x = torch.randn(batch, 3, FEATURES)
    for threads in (1, 2):
        in_the_engine(model, x, *states_of(kind, {}, batch), threads=threads)


class Learned(nn.Module):
    """Begins with a state that was learned, the same for every item."""

    def __init__(self, kind) -> None:
        super().__init__()
        self.layers = kind(FEATURES, SIZE, num_layers=2, batch_first=True)
        self.first = nn.Parameter(torch.randn(2, 1, SIZE))

    def forward(self, x: Tensor):
        state = self.first.expand(-1, len(x), -1).contiguous()
        if isinstance(self.layers, nn.LSTM):
            return self.layers(x, (state, torch.zeros_like(state)))
        return self.layers(x, state)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_learned_first_state_is_part_of_the_layer(kind):
    for batch in (1, 3):
        in_the_engine(Learned(kind), torch.randn(batch, 4, FEATURES))


def test_a_state_that_is_half_given_and_half_constant_is_both():
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.LSTM(FEATURES, SIZE)

        def forward(self, x: Tensor, cell: Tensor):
            return self.layers(x, (torch.full(cell.shape, 0.5), cell))[0]

    x, cell = torch.randn(4, 3, FEATURES), torch.randn(1, 3, SIZE)
    in_the_engine(Half(), x, cell)


class Cell(nn.Module):
    def __init__(self, kind, bias: bool) -> None:
        super().__init__()
        self.cell = kind(FEATURES, SIZE, bias=bias)

    def forward(self, x: Tensor, *states: Tensor):
        if not states:
            return self.cell(x)
        given = states if isinstance(self.cell, nn.LSTMCell) else states[0]
        return self.cell(x, given)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_a_cell_is_one_step_of_its_layer(isa, kind, bias):
    model = Cell(kind, bias)
    for batch in (1, 4):
        x = torch.randn(batch, FEATURES)
        states = [torch.randn(batch, SIZE) for _ in range(1 + (kind is nn.LSTMCell))]
        in_the_engine(model, x)
        in_the_engine(model, x, *states)
    # without a batch
    in_the_engine(model, x[0], *(state[0] for state in states))


class Decoder(nn.Module):
    """A loop over cells, of which only the last states leave."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList(
            [nn.LSTMCell(FEATURES, SIZE), nn.LSTMCell(SIZE, SIZE)]
        )
        self.head = nn.Linear(SIZE, FEATURES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        one = other = None
        for _ in range(3):
            one = self.cells[0](x, one)
            other = self.cells[1](one[0], other)
            x = self.head(other[0])
        return x, other[1]


def test_a_loop_of_cells_runs_in_the_engine():
    model = Decoder()
    thin_(model, 0.8)
    in_the_engine(model, torch.randn(3, FEATURES))


class Kept(nn.Module):
    """Keeps its state in a buffer between calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.GRU(FEATURES, SIZE, batch_first=True)
        self.register_buffer("state", torch.zeros(1, 2, SIZE))

    def forward(self, x: Tensor) -> Tensor:
        out, last = self.layers(x, self.state)
        self.state.copy_(last)
        return out


def test_a_state_in_a_buffer_goes_on_from_call_to_call():
    model, plain = Kept().eval(), Kept().eval()
    plain.load_state_dict(model.state_dict())
    x = torch.randn(2, 5, FEATURES)
    fast = compile(model, x)
    assert "0 torch calls" in fast.plan.describe()
    with torch.no_grad():
        for _ in range(3):
            made, wanted = fast(x), plain(x)
            assert (made - wanted).abs().max() <= 2e-5 * wanted.abs().max()


def test_an_infinite_state_makes_what_torch_makes():
    model = Streaming(nn.GRU, zeros=0.9, batch_first=True).eval()
    x, state = torch.randn(2, 3, FEATURES), torch.randn(1, 2, SIZE)
    fast = compile(model, (x, state))
    state[0, 1, 3] = float("inf")
    with torch.no_grad():
        for a, b in zip(fast(x, state), model(x, state), strict=True):
            assert torch.allclose(a, b, atol=1e-5, equal_nan=True)
