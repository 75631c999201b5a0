"""The products of recurrent layers and cells: input weights over a whole sequence,
hidden weights with the states before each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from tersify.sparse.products import (
    Call,
    CannotCollect,
    Product,
    vectors_call,
)


def _recurrent_places(module: nn.RNNBase) -> list[tuple[int, str]]:
    directions = ("", "_reverse") if module.bidirectional else ("",)
    return [
        (layer, direction)
        for layer in range(module.num_layers)
        for direction in directions
    ]


def recurrent_products(module: nn.RNNBase) -> Iterator[Product]:
    for layer, direction in _recurrent_places(module):
        for matrix in ("ih", "hh"):
            name = f"weight_{matrix}_l{layer}{direction}"
            yield _gates(
                name,
                module.mode.lower().partition("_")[0],
                getattr(module, name),
                matrix,
            )


def _gates(name: str, kind: str, weight: Tensor, matrix: str) -> Product:
    gates = {"lstm": "input, forget, cell, output", "gru": "reset, update, new"}.get(
        kind, "one"
    )
    what = "the inputs" if matrix == "ih" else "the hidden states before each step"
    facts = {
        "gates": gates,
        "layout": {"input": f"rows: {what}, (time step, sequence), row-major"},
    }
    return Product(part=name, kind=kind, parameter=name, weight=weight, facts=facts)


def recurrent_calls(
    module: nn.RNNBase, given: Mapping[str, Any], output: Any
) -> Iterator[Call]:
    values = given["input"]
    if isinstance(values, PackedSequence):
        raise CannotCollect("it was called with a packed sequence; give padded ones")
    if module.proj_size:
        raise CannotCollect("LSTMs with a projection are not lowered")
    states = given.get("hx")
    if values.ndim == 2:
        values = values[:, None]
        states = (
            None
            if states is None
            else _map_states(states, lambda state: state[:, None])
        )
    elif module.batch_first:
        values = values.transpose(0, 1)
    if states is None:
        states = values.new_zeros(
            len(_recurrent_places(module)), values.shape[1], module.hidden_size
        )
        states = (states, states) if isinstance(module, nn.LSTM) else states
    ends: list[Tensor] = []
    for number, (layer, direction) in enumerate(_recurrent_places(module)):
        # A backward direction is a forward one over the reversed sequence.
        inputs = values.flip(0) if direction else values
        start = _map_states(states, itemgetter(slice(number, number + 1)))
        hidden = _one_layer(module, layer, direction)(inputs, start)[0]
        first = start[0] if isinstance(start, tuple) else start
        yield vectors_call(f"weight_ih_l{layer}{direction}", inputs)
        # What enters the recurrent product is the hidden state after the step before.
        yield vectors_call(
            f"weight_hh_l{layer}{direction}", torch.cat([first, hidden[:-1]])
        )
        ends.append(hidden.flip(0) if direction else hidden)
        # The next layer reads both directions side by side, in the order of time.
        if len(ends) == (2 if module.bidirectional else 1):
            values, ends = torch.cat(ends, -1), []


def _map_states(states: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return (
        tuple(change(state) for state in states)
        if isinstance(states, tuple)
        else change(states)
    )


def _one_layer(module: nn.RNNBase, layer: int, direction: str) -> nn.RNNBase:
    """One layer and direction of a recurrent network as a network of its own."""
    weights = {
        kind: getattr(module, f"weight_{kind}_l{layer}{direction}")
        for kind in ("ih", "hh")
    }
    kind: type[nn.RNNBase] = next(
        k for k in (nn.LSTM, nn.GRU, nn.RNN) if isinstance(module, k)
    )
    more = {"nonlinearity": module.nonlinearity} if isinstance(module, nn.RNN) else {}
    # torch gives the hidden states of the last layer alone, so each layer runs by
    # itself.
    single = kind(weights["ih"].shape[1], module.hidden_size, bias=module.bias, **more)
    state = {f"weight_{kind}_l0": weight for kind, weight in weights.items()}
    if module.bias:
        state |= {
            f"bias_{kind}_l0": getattr(module, f"bias_{kind}_l{layer}{direction}")
            for kind in weights
        }
    single.load_state_dict(state)
    return single.to(device=weights["ih"].device, dtype=weights["ih"].dtype)


def cell_products(module: nn.RNNCellBase) -> Iterator[Product]:
    kind = next(k for k in ("lstm", "gru", "rnn") if k in type(module).__name__.lower())
    for matrix in ("ih", "hh"):
        yield _gates(
            f"weight_{matrix}", kind, getattr(module, f"weight_{matrix}"), matrix
        )


def cell_calls(
    module: nn.RNNCellBase, given: Mapping[str, Any], output: Any
) -> Iterator[Call]:
    values, state = given["input"], given.get("hx")
    hidden = state[0] if isinstance(state, tuple) else state
    yield vectors_call("weight_ih", values)
    yield vectors_call(
        "weight_hh",
        values.new_zeros(*values.shape[:-1], module.hidden_size)
        if hidden is None
        else hidden,
    )
