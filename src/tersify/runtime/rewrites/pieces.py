"""Calls that cut a tensor into several become a call for each piece, which has a kernel;
so do those that turn it around.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from tersify.runtime.capture import Call, Graph, Ref, Value

aten = torch.ops.aten
_SPLITS = (aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int)


def with_single_pieces(graph: Graph, kept: frozenset[str] = frozenset()) -> Graph:
    calls: list[Call] = []
    for call in graph.calls:
        cut = call.target in _SPLITS and not kept.intersection(call.results)
        calls.extend(_pieces(call, graph) if cut else [call])
    return replace(graph, calls=tuple(calls))


def _pieces(call: Call, graph: Graph) -> Iterator[Call]:
    a = call.arguments()
    source, axis, begin = a["self"], a["dim"], 0
    for number, name in enumerate(call.results):
        target: Any = aten.slice.Tensor
        more: tuple[int, ...]
        shape = graph.values[name].shape
        if call.target is aten.unbind.int:
            target, more = aten.select.int, (axis, number)
        else:
            more = (axis, begin, begin + shape[axis])
            begin += shape[axis]
        yield Call(target=target, args=(source, *more), kwargs={}, results=(name,))


def with_rolled_pieces(graph: Graph, kept: frozenset[str] = frozenset()) -> Graph:
    """What leaves a tensor at one end and comes back at the other is two pieces of it."""
    values = dict(graph.values)
    calls: list[Call] = []
    for call in graph.calls:
        rolled = call.target is aten.roll.default and _can_be_cut(call, graph)
        stays = not rolled or kept.intersection(call.results)
        calls.extend([call] if stays else _rolled(call, values))
    return replace(graph, calls=tuple(calls), values=values)


def _can_be_cut(call: Call, graph: Graph) -> bool:
    value = graph.values[call.results[0]]
    axes = bool(call.arguments()["dims"])  # else all numbers turn as one row
    return axes and value.dtype == torch.float32 and 0 not in value.shape


def _rolled(call: Call, values: dict[str, Value]) -> Iterator[Call]:
    a, name = call.arguments(), call.results[0]
    source, value = a["self"], values[name]
    turns = list(zip(a["shifts"], a["dims"], strict=True))
    for number, (shift, axis) in enumerate(turns):
        size = value.shape[axis]
        cut = size - shift % size
        made = name if number == len(turns) - 1 else f"{name}_{number}"
        pieces = []
        for what, begin, end in (("end", cut, size), ("begin", 0, cut)):
            shape = list(value.shape)
            shape[axis] = end - begin
            if not shape[axis]:
                continue
            pieces.append(Ref(f"{made}_{what}"))
            values[pieces[-1].name] = replace(value, shape=tuple(shape))
            yield Call(
                target=aten.slice.Tensor,
                args=(source, axis, begin, end),
                kwargs={},
                results=(pieces[-1].name,),
            )
        values[made] = value
        yield Call(
            target=aten.cat.default, args=(pieces, axis), kwargs={}, results=(made,)
        )
        source = Ref(made)
