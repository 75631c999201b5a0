"""What torch calls its recurrent layers and cells, and what each becomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.capture.values import Call, Ref
from tersify.runtime.ops.base import CannotLower, Context, Op, lowers
from tersify.runtime.ops.recurrent import Direction, Recurrent


@lowers(torch.lstm, torch.gru)
def _lower(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    source, states, weights, biased, layers, both, batch_first = _arguments(call)
    context.floats(source, rank=3)
    # A direction has weights for its input and for its state, and a bias for each.
    size = 4 if biased else 2
    per_layer = 2 if both else 1
    if len(weights) != size * layers * per_layer:
        raise CannotLower("projections have no kernel")
    directions = [
        _direction(context, weights[i : i + size]) for i in range(0, len(weights), size)
    ]
    gru = call.target is torch.gru
    first, names = _first(context, [states] if gru else states, rank=3)
    op = Recurrent(
        gru=gru,
        layers=tuple(
            tuple(directions[i : i + per_layer])
            for i in range(0, len(directions), per_layer)
        ),
        batch_first=bool(batch_first),
        first=first,
        wanted=tuple(map(context.is_read, call.results[1:])),
    )
    return op, (source.name, *names)


@lowers(torch.lstm_cell, torch.gru_cell)
def _lower_cell(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    if len(call.args) != 6 or call.kwargs:
        raise CannotLower("a cell with a kernel has two weights and two biases")
    source, states, *weights = call.args
    context.floats(source, rank=2)
    gru = call.target is torch.gru_cell
    first, names = _first(context, [states] if gru else states, rank=2)
    op = Recurrent(
        gru=gru,
        layers=((_direction(context, [w for w in weights if w is not None]),),),
        batch_first=True,
        first=first,
        wanted=tuple(map(context.is_read, call.results[1:])),
        one_step=True,
    )
    return op, (source.name, *names)


def _arguments(call: Call) -> tuple[Ref, Any, Any, Any, Any, Any, Any]:
    """Source, states, weights, whether there are biases, layers, whether it goes both
    ways, and whether the batch comes first: of torch's form for whole batches, which has
    nine arguments. That for packed sequences has others.
    """
    refusal = CannotLower("only whole batches of equal lengths have a kernel")
    if len(call.args) != 9 or call.kwargs:
        raise refusal
    source, states, weights, biased, layers, dropout, train, both, batch_first = (
        call.args
    )
    if not isinstance(source, Ref) or not isinstance(weights, (list, tuple)):
        raise refusal
    # Dropout between layers only acts in training.
    if train and dropout:
        raise refusal
    return source, states, weights, biased, layers, both, batch_first


def _first(
    context: Context, states: Sequence[Any], *, rank: int
) -> tuple[tuple[Tensor | None, ...], tuple[str, ...]]:
    """What the states begin with, and the names of those that inputs hold."""
    found: list[Tensor | None] = []
    names = []
    for state in states:
        if context.is_constant(state):
            found.append(_same_for_all(context.constant(state, "first state"), rank))
        else:
            context.floats(state, rank=rank)
            found.append(None)
            names.append(state.name)
    zeros = all(state is not None and not bool(state.any()) for state in found)
    return () if zeros else tuple(found), tuple(names)


def _same_for_all(state: Tensor, rank: int) -> Tensor:
    """[layers · directions, size] of a constant that is the same for every item."""
    state = state.detach()
    state = state.unsqueeze(0) if rank == 2 else state
    if state.dtype != torch.float32 or not bool(state.isfinite().all()):
        raise CannotLower("its first state is not of finite float32 numbers")
    if not torch.equal(state, state[:, :1].expand_as(state)):
        raise CannotLower("its first state is a constant that differs among the items")
    return state[:, 0]


def _direction(context: Context, weights: Sequence[Any]) -> Direction:
    # torch lists a direction's tensors as W_ih, W_hh, b_ih, b_hh.
    given, own = map(context.weight, weights[:2])
    bias = [context.constant(one, "bias") for one in weights[2:]]
    return Direction(
        given=given,
        own=own,
        given_bias=bias[0] if bias else None,
        own_bias=bias[1] if bias else None,
    )
