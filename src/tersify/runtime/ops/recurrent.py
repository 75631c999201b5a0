"""LSTM and GRU layers: the input's part of all gates at once, then step by step with
the state's matrix kept packed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from tersify.runtime.capture.values import Call, Ref
from tersify.runtime.epilogue import Epilogue
from tersify.runtime.ops.base import CannotLower, Context, Op, float64, lowers
from tersify.runtime.ops.linear import Linear, LinearKernel
from tersify.runtime.weights import DENSE_FROM, Weight

if TYPE_CHECKING:
    from tersify.runtime.engine import Emitter
    from tersify.runtime.plan import Node, Quant


@dataclass(frozen=True, kw_only=True, eq=False)
class Direction:
    """One layer in one direction: what its gates make of the input and of the state."""

    given: Weight
    own: Weight
    given_bias: Tensor | None
    own_bias: Tensor | None

    @property
    def dense(self) -> tuple[Tensor, ...]:
        """As torch takes it."""
        own = (_values(self.given), _values(self.own))
        if self.given_bias is None or self.own_bias is None:
            return own
        return (*own, self.given_bias, self.own_bias)


@dataclass(frozen=True, kw_only=True, eq=False)
class Recurrent(Op):
    """Layers one above the other, each of one or two directions. `final`: the last
    states are made, too.
    """

    kind: ClassVar[str] = "recurrent"
    gru: bool
    layers: tuple[tuple[Direction, ...], ...]
    batch_first: bool
    final: bool

    @property
    def size(self) -> int:
        return int(self.layers[0][0].own.shape[1])

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Any:
        x = sources[0]
        directions = len(self.layers[0])
        weights = [
            t.to(x.dtype) for layer in self.layers for one in layer for t in one.dense
        ]
        # Two matrices and two biases per direction.
        biased = len(weights) == 4 * len(self.layers) * directions
        zeros = x.new_zeros(
            len(self.layers) * directions,
            x.shape[0 if self.batch_first else 1],
            self.size,
        )
        both = directions == 2
        made: tuple[Tensor, ...]
        if self.gru:
            made = torch.gru(
                x,
                zeros,
                weights,
                biased,
                len(self.layers),
                0.0,
                False,
                both,
                self.batch_first,
            )
        else:
            made = torch.lstm(
                x,
                [zeros, zeros],
                weights,
                biased,
                len(self.layers),
                0.0,
                False,
                both,
                self.batch_first,
            )
        return tuple(t.contiguous() for t in made)

    def emit(self, emitter: Emitter, node: Node) -> int:
        engine = emitter.engine
        batch, steps = (
            node.shape[:2] if self.batch_first else (node.shape[1], node.shape[0])
        )
        value = emitter.source(node)
        if not self.batch_first:
            features = self.layers[0][0].given.shape[1]
            value = _swapped(engine, value, (steps, batch, features))
        last = []
        for layer in self.layers:
            made = []
            # The second direction reads the sequence from its end, so its last state
            # belongs to step 0.
            for backwards, one in enumerate(layer):
                made.append(
                    self._emit_direction(
                        emitter, node, value, one, (batch, steps), bool(backwards)
                    )
                )
                last.append((made[-1], 0 if backwards else steps - 1))
            value = (
                made[0]
                if len(made) == 1
                else self._side_by_side(engine, made, batch, steps)
            )
        if self.final:
            self._emit_final(emitter, node, last, batch)
        width = self.size * len(self.layers[0])
        return (
            value
            if self.batch_first
            else _swapped(engine, value, (batch, steps, width))
        )

    def _emit_direction(
        self,
        emitter: Emitter,
        node: Node,
        value: int,
        one: Direction,
        sizes: tuple[int, int],
        backwards: bool,
    ) -> int:
        engine, module = emitter.engine, emitter.module
        batch, steps = sizes
        # The input's part of all gates needs no state, so all steps are one product:
        # [steps, features] times [gates · size, features]ᵀ.
        rows, features = one.given.shape
        dense = one.given.density >= DENSE_FROM
        linear = Linear(
            weight=one.given,
            kernel=LinearKernel.DENSE_F32 if dense else LinearKernel.F32,
        )
        source = engine.view(value, batch, (1, steps, features))
        gates = engine.linear(
            source, linear.packed(emitter), self._start(one).in_cpp(module, rows)
        )
        emitter.belongs_to(node, gates)
        # A GRU multiplies the state's part of its new gate, bias included, by the reset
        # gate. So this bias cannot join the input's, as it does in an LSTM.
        bias = (
            one.own_bias.to(torch.float32).tolist()
            if self.gru and one.own_bias is not None
            else []
        )
        bias = [0.0] * rows if self.gru and not bias else bias
        matrix = emitter.packed(
            one.own,
            (self.kind, self.gru, tuple(bias)),
            lambda: module.pack_recurrent(
                emitter.workspace, _values(one.own).contiguous(), self.gru, bias
            ),
        )
        return int(engine.recurrent(gates, matrix, backwards))

    def _start(self, one: Direction) -> Epilogue:
        """What the input's gates begin with: of an LSTM both biases."""
        # An LSTM only ever adds both biases. A GRU keeps its own: see
        # `_emit_direction`.
        bias = None if one.given_bias is None else float64(one.given_bias)
        if bias is not None and one.own_bias is not None and not self.gru:
            bias = bias + float64(one.own_bias)
        scale = None if one.given.row_scale is None else float64(one.given.row_scale)
        return Epilogue(scale=scale, shift=bias)

    def _side_by_side(
        self, engine: Any, made: list[int], batch: int, steps: int
    ) -> int:
        # Joined per step: [batch · steps] items of `size` channels each.
        vectors = [
            engine.view(value, batch * steps, (self.size, 1, 1)) for value in made
        ]
        return int(
            engine.view(engine.concatenate(vectors), batch, (1, steps, 2 * self.size))
        )

    def _emit_final(
        self, emitter: Emitter, node: Node, last: list[tuple[int, int]], batch: int
    ) -> None:
        """The last state of every layer and direction: [layers · directions, batch,
        size].
        """
        engine, size = emitter.engine, self.size
        # Step `place` of each item, `size` numbers from there on.
        states = [
            engine.move(value, (1, 1, size), [(size, 0, size, 1)], place * size, 0.0)
            for value, place in last
        ]
        whole = [engine.view(state, 1, (batch * size, 1, 1)) for state in states]
        value = whole[0] if len(whole) == 1 else engine.concatenate(whole)
        name, shape = next(iter(node.more.items()))
        emitter.also(node, name, value, shape.shape)

    def describe(self, inputs: tuple[str, ...]) -> list[str]:
        zeros = [100 * (1 - one.own.density) for layer in self.layers for one in layer]
        cell = "GRU" if self.gru else "LSTM"
        return [
            f"{cell}, {len(self.layers)} layers of {self.size}",
            f"{min(zeros):.1f} % zeros in the state's matrices",
        ]


def _swapped(engine: Any, value: int, shape: tuple[int, int, int]) -> int:
    """The first two axes change places."""
    first, second, width = shape
    # With one of them alone the order in memory is the same.
    if first == 1 or second == 1:
        return int(engine.view(value, second, (1, first, width)))
    # The batch takes part in the move, so the engine sees one item.
    whole = engine.view(value, 1, (1, 1, math.prod(shape)))
    axes = [
        (second, 0, second, width),
        (first, 0, first, second * width),
        (width, 0, width, 1),
    ]
    return int(
        engine.view(
            engine.move(whole, (1, 1, math.prod(shape)), axes, 0, 0.0),
            second,
            (1, first, width),
        )
    )


def _values(weight: Weight) -> Tensor:
    factors = weight.factors
    return (
        factors if weight.row_scale is None else factors * weight.row_scale.unsqueeze(1)
    )


@lowers(torch.lstm, torch.gru)
def _lower(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    source, states, weights, biased, layers, both, batch_first = _arguments(call)
    context.floats(source, rank=3)
    gru = call.target is torch.gru
    # An LSTM has a hidden and a cell state.
    for state in [states] if gru else states:
        if bool(context.constant(state, "first state").any()):
            raise CannotLower("its first state is not zero")
    # The kernel makes the sequence and the last hidden state, not the cell's.
    context.unread(call.results[2:])
    # A direction has weights for its input and for its state, and a bias for each.
    size = 4 if biased else 2
    per_layer = 2 if both else 1
    if len(weights) != size * layers * per_layer:
        raise CannotLower("projections have no kernel")
    directions = [
        _direction(context, weights[i : i + size]) for i in range(0, len(weights), size)
    ]
    op = Recurrent(
        gru=gru,
        layers=tuple(
            tuple(directions[i : i + per_layer])
            for i in range(0, len(directions), per_layer)
        ),
        batch_first=bool(batch_first),
        final=context.is_read(call.results[1]),
    )
    return op, (source.name,)


def _arguments(call: Call) -> tuple[Ref, Any, Any, Any, Any, Any, Any]:
    """Source, states, weights, whether there are biases, layers, whether it goes both
    ways, and whether the batch comes first: of torch's form for whole batches, which has
    nine arguments. That for packed sequences has others.
    """
    refusal = CannotLower("only whole batches of equal lengths have a kernel")
    if len(call.args) != 9 or call.kwargs:
        raise refusal
    source, states, weights, biased, layers, dropout, train, both, batch_first = (
        call.args
    )
    if not isinstance(source, Ref) or not isinstance(weights, (list, tuple)):
        raise refusal
    # Dropout between layers only acts in training.
    if train and dropout:
        raise refusal
    return source, states, weights, biased, layers, both, batch_first


def _direction(context: Context, weights: Sequence[Any]) -> Direction:
    # torch lists a direction's tensors as W_ih, W_hh, b_ih, b_hh.
    given, own = (context.weight(weight) for weight in weights[:2])
    bias = [context.constant(one, "bias") for one in weights[2:]]
    return Direction(
        given=given,
        own=own,
        given_bias=bias[0] if bias else None,
        own_bias=bias[1] if bias else None,
    )
