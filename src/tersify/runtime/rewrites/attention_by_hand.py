"""Attention that a forward writes as products and a softmax becomes one call, which has
a kernel.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.capture import Call, Graph, Ref, Value
from tersify.runtime.ops.attention import HIDDEN, attention_by_hand, constant_mask

aten = torch.ops.aten
_PRODUCTS = (aten.matmul.default, aten.bmm.default)
_FACTORS = (aten.mul.Tensor, aten.div.Tensor)
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
FAR = -1e9  # a score that was replaced by such a number counts for nothing


def with_attention(graph: Graph, kept: frozenset[str] = frozenset()) -> Graph:
    """softmax(q · kᵀ · scale + mask) · v as one call. The calls that nobody reads then
    are left for the lowering to drop.
    """
    found = _Found(graph)
    calls: list[Call] = []
    for call in graph.calls:
        stays = call.target not in _PRODUCTS or kept.intersection(call.results)
        calls.extend((None if stays else found.attention(call)) or [call])
    return replace(
        graph, calls=tuple(calls), values=found.values, constants=found.constants
    )


@dataclass
class _Scores:
    """What the softmax reads: the product, and what happens to it until then."""

    factor: float = 1.0
    mask: Ref | None = None  # from the inputs
    added: Tensor | None = None
    hidden: Tensor | None = None  # which scores are replaced, and by what
    filled: float = -math.inf
    chain: list[Call] = field(default_factory=list)  # from the softmax backwards

    @property
    def product(self) -> Call:
        return self.chain[-1]

    def add(self, constant: Tensor) -> None:
        constant = self.factor * constant
        self.added = constant if self.added is None else self.added + constant

    def scale(self, call: Call, number: float | None) -> bool:
        """By what the call multiplies or divides with, where that is a number."""
        if not number or not math.isfinite(number):
            return False
        self.factor *= 1 / number if call.target is aten.div.Tensor else number
        return True


class _Found:
    def __init__(self, graph: Graph) -> None:
        self.values = dict(graph.values)
        self.constants = dict(graph.constants)
        self._makers = {name: call for call in graph.calls for name in call.results}
        self._readers = Counter(graph.results)
        for call in graph.calls:
            self._readers.update(call.reads)

    def attention(self, last: Call) -> list[Call] | None:
        weights = self._maker(last, 0)
        if weights is None or weights.target is not aten._softmax.default:
            return None
        rank = len(self.values[weights.results[0]].shape)
        if weights.args[1] % rank != rank - 1 or rank not in (3, 4):
            return None
        scores = self._scores(weights)
        if scores is None:
            return None
        # What somebody else reads would be computed twice.
        inside = [weights, *scores.chain]
        if any(self._readers[call.results[0]] != 1 for call in inside):
            return None
        fits = self._fit(last, scores, rank) and self._masks_fit(scores, rank)
        return self._calls(last, scores, rank) if fits else None

    def _scores(self, weights: Call) -> _Scores | None:
        """By the way from the softmax back to a product."""
        scores = _Scores()
        call = self._maker(weights, 0)
        while call is not None:
            scores.chain.append(call)
            if call.target in _PRODUCTS:
                return scores
            if call.target is aten.add.Tensor:
                call = self._added(call, scores)
            elif call.target in _VIEWS:
                call = self._added_between_views(call, scores)
            elif call.target in _FACTORS:
                scaled = scores.scale(call, self._number(call.args[1]))
                call = self._maker(call, 0) if scaled else None
            else:
                call = self._hidden(call, scores)
        return None

    def _added(self, call: Call, scores: _Scores) -> Call | None:
        """A mask, on either side."""
        if call.kwargs or len(call.args) != 2:
            return None
        inner = 0 if self._maker(call, 0) is not None else 1
        mask = call.args[1 - inner]
        if not isinstance(mask, Ref):
            return None
        if mask.name in self.constants:
            scores.add(self.constants[mask.name])
        elif scores.mask is None and scores.factor == 1.0:
            scores.mask = mask
        else:
            return None
        return self._maker(call, inner)

    def _added_between_views(self, call: Call, scores: _Scores) -> Call | None:
        """A constant mask of windows, for which their axis is apart: all that is between
        two views that undo each other.
        """
        added = self._maker(call, 0)
        view = self._maker(added, 0) if added is not None else None
        source = self._maker(view, 0) if view is not None else None
        if added is None or view is None or source is None:
            return None
        chain = added.target is aten.add.Tensor and view.target in _VIEWS
        mask = added.args[1] if chain and not added.kwargs else None
        constant = self.constants.get(mask.name) if isinstance(mask, Ref) else None
        inner, outer = (self.values[x.results[0]].shape for x in (added, call))
        whole = constant is not None and self.values[source.results[0]].shape == outer
        if constant is None or not whole or len(outer) != 4:
            return None
        if torch.broadcast_shapes(constant.shape, inner) != inner:
            return None
        mask = constant.expand(inner).reshape(outer)
        scores.chain += [added, view]
        scores.add(
            mask[:, :1] if torch.equal(mask, mask[:, :1].expand(outer)) else mask
        )
        return source

    def _hidden(self, call: Call, scores: _Scores) -> Call | None:
        """Scores that are replaced by next to nothing."""
        shown = False
        if call.target is aten.masked_fill.Scalar:
            inner, where, number = 0, call.args[1], float(call.args[2])
        elif call.target is aten.where.self:
            inner = 1 if self._maker(call, 1) is not None else 2
            where, shown = call.args[0], inner == 1
            number = self._number(call.args[3 - inner]) or 0.0
        else:
            return None
        hidden = self.constants.get(where.name)
        if hidden is None or hidden.dtype != torch.bool or not number <= FAR:
            return None
        if scores.factor != 1.0 or scores.hidden is not None:
            return None
        scores.hidden, scores.filled = ~hidden if shown else hidden, number
        return self._maker(call, inner)

    def _number(self, given: Any) -> float | None:
        if isinstance(given, (int, float)):
            return float(given)
        constant = self.constants.get(given.name) if isinstance(given, Ref) else None
        return None if constant is None or constant.numel() != 1 else float(constant)

    def _maker(self, call: Call, place: int) -> Call | None:
        """Of an argument; none where it is an input, a constant or a number."""
        given = call.args[place] if place < len(call.args) else None
        return self._makers.get(given.name) if isinstance(given, Ref) else None

    def _fit(self, last: Call, scores: _Scores, rank: int) -> bool:
        """Whether queries, keys and values are three values of the same heads."""
        taken = (*scores.product.args, last.args[1])
        if len(taken) != 3 or any(not isinstance(x, Ref) for x in taken):
            return False
        if any(x.name in self.constants for x in taken):
            return False
        values = [self.values[x.name] for x in taken]
        return all(
            len(value.shape) == rank
            and value.shape[:-2] == values[0].shape[:-2]
            and value.dtype == torch.float32
            for value in values
        )

    def _masks_fit(self, scores: _Scores, rank: int) -> bool:
        constant = constant_mask(scores.added, scores.hidden)
        if constant is None:
            return scores.mask is None or rank == 4
        if scores.mask is not None or constant.dtype != torch.float32:
            return False
        shape = self.values[scores.product.results[0]].shape
        if torch.broadcast_shapes(constant.shape, shape) != shape:
            return False
        # A softmax of nothing is NaN.
        return bool((constant.expand(shape) > HIDDEN).any(-1).all())

    def _unscaled(self, query: Ref, scores: _Scores) -> Ref:
        """Queries are often scaled before."""
        before = self._makers.get(query.name)
        if before is None or before.target not in _FACTORS:
            return query
        given, number = before.args[0], self._number(before.args[1])
        same = isinstance(given, Ref) and (
            self.values[given.name] == self.values[query.name]
        )
        return given if same and scores.scale(before, number) else query

    def _calls(self, last: Call, scores: _Scores, rank: int) -> list[Call]:
        name = last.results[0]
        made = _Made(name, self.values)
        query, turned, value = (*scores.product.args, last.args[1])
        query = self._unscaled(query, scores)
        key = made.call(aten.transpose.int, turned, (-2, -1), "keys")
        masks = {"mask": scores.mask}
        for what, constant in (("added", scores.added), ("hidden", scores.hidden)):
            masks[what] = None
            if constant is not None:
                masks[what] = Ref(f"{name}_{what}")
                self.constants[f"{name}_{what}"] = _of_heads(constant, rank)
        if rank == 3:  # one head
            query, key, value = (
                made.call(aten.unsqueeze.default, x, (1,), what)
                for x, what in ((query, "one_q"), (key, "one_k"), (value, "one_v"))
            )
        wanted = self.values[name]
        result = name if rank == 4 else f"{name}_one"
        shape = (wanted.shape[0], 1, *wanted.shape[1:]) if rank == 3 else wanted.shape
        self.values[result] = replace(wanted, shape=shape)
        how = {"scale": scores.factor, "filled": scores.filled}
        attention = Call(
            target=attention_by_hand,
            args=(query, key, value),
            kwargs={**masks, **how},
            results=(result,),
        )
        made.calls.append(attention)
        if rank == 3:
            made.calls.append(
                Call(
                    target=aten.squeeze.dim,
                    args=(Ref(result), 1),
                    kwargs={},
                    results=(name,),
                )
            )
        return made.calls


def _of_heads(mask: Tensor, rank: int) -> Tensor:
    """Of four axes."""
    whole = mask.reshape(*[1] * (rank - mask.ndim), *mask.shape)
    return whole.unsqueeze(1) if rank == 3 else whole


class _Made:
    """Calls that only change shapes, and the values they make."""

    def __init__(self, name: str, values: dict[str, Value]) -> None:
        self.calls: list[Call] = []
        self._name = name
        self._values = values

    def call(self, target: Any, given: Ref, more: tuple[Any, ...], what: str) -> Ref:
        value = self._values[given.name]
        shape = tuple(target(torch.empty(value.shape, device="meta"), *more).shape)
        result = Ref(f"{self._name}_{what}")
        self._values[result.name] = replace(value, shape=shape)
        self.calls.append(
            Call(target=target, args=(given, *more), kwargs={}, results=(result.name,))
        )
        return result
