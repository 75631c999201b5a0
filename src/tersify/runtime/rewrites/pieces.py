"""Calls that cut a tensor into several become a call for each piece, which has a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from tersify.runtime.capture import Call, Graph

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
