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
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from tersify.sparse.lowering import Geometry, column_count, lower_input, lower_weight
from tersify.sparse.products import (
    Call,
    CannotCollect,
    Product,
    less_bias,
    vectors_call,
)
from tersify.sparse.recurrent_products import (
    cell_calls,
    cell_products,
    recurrent_calls,
    recurrent_products,
)


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
    yield vectors_call(
        "",
        given["input"],
        result=lambda numbers: less_bias(flat[numbers], module.bias),
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
    # torch also takes one image without a batch dimension.
    if images.ndim == len(module.kernel_size) + 1:
        images, output = images[None], output[None]
    geometry = Geometry.of(module)
    if isinstance(module, _ConvTransposeNd):
        plain = Geometry.of(module, (0,) * geometry.ndim).output_size(
            tuple(images.shape[2:])
        )
        # A call may give output_size, which only the output itself shows.
        extra = tuple(n - p for n, p in zip(output.shape[2:], plain, strict=True))
        geometry = Geometry.of(module, extra)
    by_place = output.movedim(1, -1).flatten(0, -2)
    yield Call(
        part="",
        count=column_count(tuple(images.shape), geometry),
        rows=lambda numbers: lower_input(images, geometry, numbers).T,
        result=lambda numbers: less_bias(by_place[numbers], module.bias),
        facts={
            "geometry": geometry.to_mapping() | {"input_size": list(images.shape[1:])}
        },
    )


def _attention_products(module: nn.MultiheadAttention) -> Iterator[Product]:
    facts = {"heads": module.num_heads, "bias": module.in_proj_bias is not None}
    if module._qkv_same_embed_dim:
        assert module.in_proj_weight is not None
        # torch holds the three projections one below the other where their sizes agree.
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
        yield vectors_call(f"{part}_proj", given[name])
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
    yield vectors_call(
        "out_proj",
        joined,
        result=lambda numbers: less_bias(flat[numbers], module.out_proj.bias),
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
    (nn.RNNBase, recurrent_products, recurrent_calls),
    (nn.RNNCellBase, cell_products, cell_calls),
    (nn.Embedding, _embedding_products, _embedding_calls),
)
