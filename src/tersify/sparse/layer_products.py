"""Which matrix products a layer computes, and the rows that go into them when it is
called.

Every product is `rows @ weight.T`: weight (M, K), rows (N, groups·K). One file knows
the layers of torch.nn:

- Linear: rows are the vectors of its input.
- Convolutions: rows are the columns of im2col (`lowering`), transposed.
- MultiheadAttention: the four projections q, k, v and out, each a product of its own.
- RNN, LSTM, GRU: for each layer and direction `weight_ih` over the whole sequence at once, rows (time step, sequence),
  and `weight_hh` with the real hidden states before each step, in the same order; a backward direction counts its
  time steps from the end. The cells: the same over all their calls.
- Embedding: rows are one-hot, weight is the transposed table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.rnn import PackedSequence

from tersify.sparse.lowering import Geometry, column_count, lower_input, lower_weight


@dataclass(frozen=True, kw_only=True)
class Product:
    """A weight (M, K) that its layer multiplies with; `part` tells apart the products
    of one layer.
    """

    part: str
    kind: str
    parameter: str
    weight: Tensor
    groups: int = 1
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Call:
    """What one call of a layer multiplies: `count` rows, gathered by their numbers.

    `result` gathers the rows of what the layer made of them, less its bias, where the
    layer returns it.
    """

    part: str
    count: int
    rows: Callable[[Tensor], Tensor]
    result: Callable[[Tensor], Tensor] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


class CannotCollect(Exception):  # noqa: N818  (a control signal, never shown as an error)
    """This call has no lowering; the message says why."""


def products(module: nn.Module) -> list[Product]:
    """Of one layer; empty where it is none of those above."""
    handler = _handler(module)
    return [] if handler is None else list(handler[0](module))


def calls(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
) -> list[Call]:
    """What a call with these arguments and this output multiplied."""
    handler = _handler(module)
    assert handler is not None
    given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    # a subclass with a forward of its own
    if "input" not in given and "query" not in given:
        given = {"input": next(iter(given.values()), None), **given}
    try:
        return list(handler[1](module, given, output))
    except KeyError as missing:
        raise CannotCollect(f"its forward has no argument {missing}") from None


def _handler(module: nn.Module) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    return next(
        (handler for kinds, *handler in _HANDLERS if isinstance(module, kinds)), None
    )  # type: ignore[return-value]


def _vectors(part: str, values: Tensor, **more: Any) -> Call:
    flat = values.reshape(-1, values.shape[-1])
    return Call(part=part, count=len(flat), rows=lambda numbers: flat[numbers], **more)


def _less_bias(values: Tensor, bias: Tensor | None) -> Tensor:
    return values if bias is None else values - bias


def _linear_products(module: nn.Linear) -> Iterator[Product]:
    facts = {
        "bias": module.bias is not None,
        "layout": {"input": "rows: the input's vectors, row-major"},
    }
    yield Product(
        part="", kind="linear", parameter="weight", weight=module.weight, facts=facts
    )


def _linear_calls(
    module: nn.Linear, given: Mapping[str, Any], output: Tensor
) -> Iterator[Call]:
    flat = output.reshape(-1, output.shape[-1])
    yield _vectors(
        "",
        given["input"],
        result=lambda numbers: _less_bias(flat[numbers], module.bias),
    )


def _conv_products(module: _ConvNd) -> Iterator[Product]:
    geometry = Geometry.of(module)
    kind = (
        f"conv_transpose{geometry.ndim}d"
        if geometry.transposed
        else f"conv{geometry.ndim}d"
    )
    weight = lower_weight(module.weight, geometry)
    facts = {"bias": module.bias is not None}
    yield Product(
        part="",
        kind=kind,
        parameter="weight",
        weight=weight,
        groups=geometry.groups,
        facts=facts,
    )


def _conv_calls(
    module: _ConvNd, given: Mapping[str, Any], output: Tensor
) -> Iterator[Call]:
    images = given["input"]
    if images.ndim == len(module.kernel_size) + 1:
        images, output = images[None], output[None]
    geometry = Geometry.of(module)
    if isinstance(module, _ConvTransposeNd):
        plain = Geometry.of(module, (0,) * geometry.ndim).output_size(
            tuple(images.shape[2:])
        )
        extra = tuple(n - p for n, p in zip(output.shape[2:], plain, strict=True))
        geometry = Geometry.of(module, extra)
    by_place = output.movedim(1, -1).flatten(0, -2)
    yield Call(
        part="",
        count=column_count(tuple(images.shape), geometry),
        rows=lambda numbers: lower_input(images, geometry, numbers).T,
        result=lambda numbers: _less_bias(by_place[numbers], module.bias),
        facts={
            "geometry": geometry.to_mapping() | {"input_size": list(images.shape[1:])}
        },
    )


def _attention_products(module: nn.MultiheadAttention) -> Iterator[Product]:
    facts = {"heads": module.num_heads, "bias": module.in_proj_bias is not None}
    if module._qkv_same_embed_dim:
        assert module.in_proj_weight is not None
        parts = zip(("q", "k", "v"), module.in_proj_weight.chunk(3), strict=True)
        named = [(part, "in_proj_weight", weight) for part, weight in parts]
    else:
        named = [
            (part, f"{part}_proj_weight", getattr(module, f"{part}_proj_weight"))
            for part in ("q", "k", "v")
        ]
    for part, parameter, weight in [
        *named,
        ("out", "out_proj.weight", module.out_proj.weight),
    ]:
        layout = {
            "input": f"rows: the vectors of {'the heads, joined' if part == 'out' else part}, row-major"
        }
        yield Product(
            part=f"{part}_proj",
            kind="attention",
            parameter=parameter,
            weight=weight,
            facts=facts | {"layout": layout},
        )


def _attention_calls(
    module: nn.MultiheadAttention, given: Mapping[str, Any], output: Any
) -> Iterator[Call]:
    for part, name in (("q", "query"), ("k", "key"), ("v", "value")):
        yield _vectors(f"{part}_proj", given[name])
    # What enters the last projection is what the module returns when that projection
    # changes nothing.
    twin = object.__new__(type(module))  # parametrized modules refuse copy.copy
    twin.__dict__ |= module.__dict__ | {"_modules": dict(module._modules)}
    like = module.out_proj.weight
    through = nn.Linear(
        like.shape[1], like.shape[1], bias=False, device=like.device, dtype=like.dtype
    )
    with torch.no_grad():
        through.weight.copy_(torch.eye(like.shape[1]))
    twin._modules["out_proj"] = through
    joined = twin.forward(**given)[0]
    flat = output[0].reshape(-1, output[0].shape[-1])
    yield _vectors(
        "out_proj",
        joined,
        result=lambda numbers: _less_bias(flat[numbers], module.out_proj.bias),
    )


def _recurrent_places(module: nn.RNNBase) -> list[tuple[int, str]]:
    directions = ("", "_reverse") if module.bidirectional else ("",)
    return [
        (layer, direction)
        for layer in range(module.num_layers)
        for direction in directions
    ]


def _recurrent_products(module: nn.RNNBase) -> Iterator[Product]:
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


def _recurrent_calls(
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
        states = None if states is None else _each(states, lambda state: state[:, None])
    elif module.batch_first:
        values = values.transpose(0, 1)
    if states is None:
        states = values.new_zeros(
            len(_recurrent_places(module)), values.shape[1], module.hidden_size
        )
        states = (states, states) if isinstance(module, nn.LSTM) else states
    ends: list[Tensor] = []
    for number, (layer, direction) in enumerate(_recurrent_places(module)):
        inputs = values.flip(0) if direction else values
        start = _each(states, itemgetter(slice(number, number + 1)))
        hidden = _one_layer(module, layer, direction)(inputs, start)[0]
        first = start[0] if isinstance(start, tuple) else start
        yield _vectors(f"weight_ih_l{layer}{direction}", inputs)
        yield _vectors(
            f"weight_hh_l{layer}{direction}", torch.cat([first, hidden[:-1]])
        )
        ends.append(hidden.flip(0) if direction else hidden)
        if len(ends) == (2 if module.bidirectional else 1):
            values, ends = torch.cat(ends, -1), []


def _each(states: Any, change: Callable[[Tensor], Tensor]) -> Any:
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
    single = kind(weights["ih"].shape[1], module.hidden_size, bias=module.bias, **more)
    state = {f"weight_{kind}_l0": weight for kind, weight in weights.items()}
    if module.bias:
        state |= {
            f"bias_{kind}_l0": getattr(module, f"bias_{kind}_l{layer}{direction}")
            for kind in weights
        }
    single.load_state_dict(state)
    return single.to(device=weights["ih"].device, dtype=weights["ih"].dtype)


def _cell_products(module: nn.RNNCellBase) -> Iterator[Product]:
    kind = next(k for k in ("lstm", "gru", "rnn") if k in type(module).__name__.lower())
    for matrix in ("ih", "hh"):
        yield _gates(
            f"weight_{matrix}", kind, getattr(module, f"weight_{matrix}"), matrix
        )


def _cell_calls(
    module: nn.RNNCellBase, given: Mapping[str, Any], output: Any
) -> Iterator[Call]:
    values, state = given["input"], given.get("hx")
    hidden = state[0] if isinstance(state, tuple) else state
    yield _vectors("weight_ih", values)
    yield _vectors(
        "weight_hh",
        values.new_zeros(*values.shape[:-1], module.hidden_size)
        if hidden is None
        else hidden,
    )


def _embedding_products(module: nn.Embedding) -> Iterator[Product]:
    layout = {
        "weight": "the transposed table: rows are its features",
        "input": "rows: one-hot, row-major",
    }
    facts = {"bias": False, "layout": layout}
    yield Product(
        part="",
        kind="embedding",
        parameter="weight",
        weight=module.weight.T,
        facts=facts,
    )


def _embedding_calls(
    module: nn.Embedding, given: Mapping[str, Any], output: Tensor
) -> Iterator[Call]:
    tokens, vectors = given["input"].reshape(-1), output.reshape(-1, output.shape[-1])

    def one_hot(numbers: Tensor) -> Tensor:
        rows = torch.zeros(
            len(numbers), module.num_embeddings, dtype=module.weight.dtype
        )
        return rows.scatter_(1, tokens[numbers][:, None].cpu().long(), 1.0)

    yield Call(
        part="",
        count=len(tokens),
        rows=one_hot,
        result=lambda numbers: vectors[numbers],
    )


_HANDLERS: tuple[
    tuple[Any, Callable[..., Iterator[Product]], Callable[..., Iterator[Call]]], ...
] = (
    (nn.Linear, _linear_products, _linear_calls),
    (_ConvNd, _conv_products, _conv_calls),
    (nn.MultiheadAttention, _attention_products, _attention_calls),
    (nn.RNNBase, _recurrent_products, _recurrent_calls),
    (nn.RNNCellBase, _cell_products, _cell_calls),
    (nn.Embedding, _embedding_products, _embedding_calls),
)
