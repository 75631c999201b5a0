"""Attention that a forward writes as products and a softmax becomes one call, which has
a kernel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from tersify.runtime.capture import Call, Graph, Ref, Value

aten = torch.ops.aten
_PRODUCTS = (aten.matmul.default, aten.bmm.default)


def with_attention(graph: Graph) -> Graph:
    """softmax(q · kᵀ · scale + mask) · v as one call. The calls that nobody reads then
    are left for the lowering to drop.
    """
    makers = {name: call for call in graph.calls for name in call.results}
    values = dict(graph.values)
    calls: list[Call] = []
    for call in graph.calls:
        calls.extend(_Found(makers, values).attention(call) or [call])
    return replace(graph, calls=tuple(calls), values=values)


class _Found:
    def __init__(self, makers: dict[str, Call], values: dict[str, Value]) -> None:
        self._makers = makers
        self._values = values

    def attention(self, last: Call) -> list[Call] | None:
        weights = self._maker(last, 0) if last.target in _PRODUCTS else None
        if weights is None or weights.target is not aten._softmax.default:
            return None
        rank = len(self._values[weights.results[0]].shape)
        if weights.args[1] % rank != rank - 1 or rank not in (3, 4):
            return None
        scores, scale, mask = self._maker(weights, 0), 1.0, None
        if scores is not None and scores.target is aten.add.Tensor and rank == 4:
            mask, scores = scores.args[1], self._maker(scores, 0)
        while scores is not None and scores.target in (
            aten.div.Tensor,
            aten.mul.Tensor,
        ):
            by = scores.args[1]
            if not isinstance(by, (int, float)):
                return None
            scale = scale / by if scores.target is aten.div.Tensor else scale * by
            scores = self._maker(scores, 0)
        if scores is None or scores.target not in _PRODUCTS:
            return None
        return self._calls(last, scores, rank, scale, mask)

    def _maker(self, call: Call, position: int) -> Call | None:
        """Of an argument; none where it is an input, a constant or a number."""
        given = call.args[position] if position < len(call.args) else None
        return self._makers.get(given.name) if isinstance(given, Ref) else None

    def _calls(
        self, last: Call, scores: Call, rank: int, scale: float, mask: Any
    ) -> list[Call] | None:
        taken = (scores.args[0], scores.args[1], last.args[1])
        if not all(isinstance(x, Ref) for x in taken):
            return None
        shapes = [self._values[x.name].shape for x in taken]
        # a weight would be no operand of attention, nor one that is broadcast
        if any(s[:-2] != shapes[0][:-2] or len(s) != rank for s in shapes):
            return None
        name, made = last.results[0], []

        def add(target: Any, given: Ref, more: tuple[Any, ...], what: str) -> Ref:
            value = self._values[given.name]
            shape = tuple(target(torch.empty(value.shape, device="meta"), *more).shape)
            result = Ref(f"{name}_{what}")
            self._values[result.name] = replace(value, shape=shape)
            made.append(
                Call(
                    target=target,
                    args=(given, *more),
                    kwargs={},
                    results=(result.name,),
                )
            )
            return result

        query, turned, value = taken
        key = add(aten.transpose.int, turned, (-2, -1), "keys")
        wanted = self._values[name].shape
        if rank == 3:  # one head
            query, key, value = (
                add(aten.unsqueeze.default, x, (1,), what)
                for x, what in ((query, "one_q"), (key, "one_k"), (value, "one_v"))
            )
            wanted = (wanted[0], 1, *wanted[1:])
        result = name if rank == 4 else f"{name}_one"
        self._values[result] = replace(self._values[name], shape=wanted)
        made.append(
            Call(
                target=aten.scaled_dot_product_attention.default,
                args=(query, key, value, mask),
                kwargs={"scale": scale},
                results=(result,),
            )
        )
        if rank == 3:
            made.append(
                Call(
                    target=aten.squeeze.dim,
                    args=(Ref(result), 1),
                    kwargs={},
                    results=(name,),
                )
            )
        return made
