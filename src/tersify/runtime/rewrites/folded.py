"""Values that depend on the sizes of the inputs alone, such as a first state of zeros,
are constants of a graph: its sizes are.
"""

from __future__ import annotations

from collections import ChainMap
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.capture import Call, Graph, resolve
from tersify.runtime.capture.randomness import is_random
from tersify.runtime.reference import results_of

aten = torch.ops.aten
# what they read of their argument is its size and its type
_FILLS = frozenset(
    {
        aten.zeros_like.default,
        aten.ones_like.default,
        aten.full_like.default,
        aten.new_zeros.default,
        aten.new_ones.default,
        aten.new_full.default,
    }
)


def with_folded_constants(graph: Graph) -> Graph:
    """Results stay calls: every run makes them anew."""
    folded: dict[str, Tensor] = {}
    known = ChainMap(folded, dict(graph.constants))
    calls = []
    for call in graph.calls:
        made = None
        if not set(graph.results).intersection(call.results):
            made = _made(call, known, graph)
        if made is None:
            calls.append(call)
        else:
            folded.update(zip(call.results, made, strict=True))
    return replace(graph, calls=tuple(calls), constants=dict(known))


def _made(
    call: Call, known: ChainMap[str, Tensor], graph: Graph
) -> list[Tensor] | None:
    if call.target in _FILLS:
        # One number in all places has the size and the type, and takes no memory.
        read = {
            name: torch.zeros((), dtype=value.dtype).expand(value.shape)
            for name in call.reads
            for value in [graph.values[name]]
        }
    else:
        own = getattr(call.target, "func", call.target)  # of a write in place
        follows = any(name in known.maps[0] for name in call.reads)
        fixed = all(name in known for name in call.reads)
        if not (follows and fixed) or is_random(own, call.args, call.kwargs):
            return None
        read = {name: known[name] for name in call.reads}
    with torch.no_grad():
        made: Any = call.target(*resolve(call.args, read), **resolve(call.kwargs, read))
    return [tensor.contiguous() for tensor in results_of(made)]
