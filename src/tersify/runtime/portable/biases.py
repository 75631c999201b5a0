"""A bias that a forward adds behind a view of its product goes into the product, where it
is one number a feature whatever the batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from tersify.runtime.capture import Call, Graph, Ref

aten = torch.ops.aten
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_PRODUCTS = (aten.mm.default,)


def with_biases(graph: Graph) -> Graph:
    """The products without their biases are left for the lowering to drop."""
    makers = {name: call for call in graph.calls for name in call.results}
    values = dict(graph.values)
    calls: list[Call] = []
    for call in graph.calls:
        product = _product(call, makers, graph)
        if product is None:
            calls.append(call)
            continue
        name, (bias, matrix) = f"{call.results[0]}_sum", (call.args[1], product.args)
        values[name] = values[product.results[0]]
        calls.append(
            Call(
                target=aten.addmm.default,
                args=(bias, *matrix),
                kwargs={},
                results=(name,),
            )
        )
        shape = list(values[call.results[0]].shape)
        calls.append(replace(call, target=aten.view.default, args=(Ref(name), shape)))
    return replace(graph, calls=tuple(calls), values=values)


def _product(call: Call, makers: dict[str, Call], graph: Graph) -> Call | None:
    if call.target is not aten.add.Tensor or call.kwargs:
        return None
    left, right = call.args
    bias = graph.constants.get(right.name) if isinstance(right, Ref) else None
    view = _maker(left, makers, _VIEWS)
    product = None if view is None else _maker(view.args[0], makers, _PRODUCTS)
    if bias is None or product is None:
        return None
    features = graph.values[product.results[0]].shape[-1]
    last = graph.values[left.name].shape[-1:]
    fits = tuple(bias.shape) == last == (features,) and bias.dtype == torch.float32
    return product if fits else None


def _maker(
    given: Any, makers: dict[str, Call], targets: tuple[Any, ...]
) -> Call | None:
    """The call that made this value, where it is one of `targets`."""
    maker = makers.get(given.name) if isinstance(given, Ref) else None
    return maker if maker is not None and maker.target in targets else None
