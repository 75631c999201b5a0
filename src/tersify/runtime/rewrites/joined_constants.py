"""A value joined with constants, such as the class token of a transformer, becomes a
value with a margin to which the constants are added: both have kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.capture import Call, Graph, Ref, Value

aten = torch.ops.aten


def with_margins(graph: Graph, kept: frozenset[str] = frozenset()) -> Graph:
    constants, values = dict(graph.constants), dict(graph.values)
    calls: list[Call] = []
    for call in graph.calls:
        stays = call.target is not aten.cat.default or kept.intersection(call.results)
        found = not stays and _one_live(call, graph)
        calls.extend(_added(call, constants, values) if found else [call])
    return replace(graph, calls=tuple(calls), constants=constants, values=values)


def _one_live(call: Call, graph: Graph) -> bool:
    joined = call.args[0]
    floats = all(graph.values[x.name].dtype == torch.float32 for x in joined)
    live = [x for x in joined if x.name not in graph.constants]
    # torch lets an empty tensor of one axis join any others
    ranks = {len(graph.values[x.name].shape) for x in joined}
    return floats and len(ranks) == 1 and len(live) == 1 < len(joined)


def _added(
    call: Call, constants: dict[str, Tensor], values: dict[str, Value]
) -> Iterator[Call]:
    joined, name = call.args[0], call.results[0]
    made = values[name]
    axis = call.arguments()["dim"] % len(made.shape)
    sizes = [values[x.name].shape[axis] for x in joined]
    place = next(i for i, x in enumerate(joined) if x.name not in constants)
    parts = [
        constants.get(x.name, torch.zeros(values[x.name].shape, dtype=made.dtype))
        for x in joined
    ]
    # torch lists margins from the last axis to the first
    margins: list[Any] = [0] * (2 * (len(made.shape) - axis))
    margins[-2:] = [sum(sizes[:place]), sum(sizes[place + 1 :])]
    wide, constant = Ref(f"{name}_wide"), Ref(f"{name}_constants")
    constants[constant.name] = torch.cat(parts, axis)
    values[wide.name] = values[constant.name] = made
    yield Call(
        target=aten.constant_pad_nd.default,
        args=(joined[place], margins, 0.0),
        kwargs={},
        results=(wide.name,),
    )
    yield Call(
        target=aten.add.Tensor, args=(wide, constant), kwargs={}, results=(name,)
    )
