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

from tersify.runtime.epilogue import Epilogue
from tersify.runtime.ops.base import Op, float64, float64_if_given
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
    """Layers one above the other, each of one or two directions.

    `first`: of the state, and of an LSTM the cell, what they begin with, [layers ·
    directions, size]; None where an input holds it, and nothing at all where all begin
    with zeros. `wanted`: which of the results behind the first are made. `one_step`: it
    is a cell, whose values have no axis for the steps or the layers.
    """

    kind: ClassVar[str] = "recurrent"
    gru: bool
    layers: tuple[tuple[Direction, ...], ...]
    batch_first: bool
    first: tuple[Tensor | None, ...] = ()
    wanted: tuple[bool, ...] = ()
    one_step: bool = False

    @property
    def size(self) -> int:
        return int(self.layers[0][0].own.shape[1])

    @property
    def keeps_state(self) -> bool:
        return not self.one_step and self.wanted[0]

    @property
    def keeps_cell(self) -> bool:
        """The last result of an LSTM is its cell."""
        return not self.gru and self.wanted[-1]

    @property
    def runs(self) -> int:
        """How many directions there are in all layers."""
        return len(self.layers) * len(self.layers[0])

    def sizes(self, node: Node) -> tuple[int, int]:
        """How many items and steps the node's value has."""
        if self.one_step:
            return node.shape[0], 1
        batch, steps = node.shape[:2] if self.batch_first else node.shape[1::-1]
        return batch, steps

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Any:
        x = sources[0]
        directions = len(self.layers[0])
        weights = [
            t.to(x.dtype) for layer in self.layers for one in layer for t in one.dense
        ]
        states = self._first_states(sources, self.sizes(node)[0])
        made: Any
        if self.one_step and self.gru:
            made = torch.gru_cell(x, states[0], *weights)
        elif self.one_step:
            made = torch.lstm_cell(x, states, *weights)
        else:
            layer: Any = torch.gru if self.gru else torch.lstm
            made = layer(
                x,
                states[0] if self.gru else states,
                weights,
                # Two matrices and two biases per direction.
                len(weights) == 4 * len(self.layers) * directions,
                len(self.layers),
                0.0,
                False,
                directions == 2,
                self.batch_first,
            )
        both = (made,) if isinstance(made, Tensor) else made
        return tuple(t.contiguous() for t in both)

    def _first_states(self, sources: Sequence[Tensor], batch: int) -> list[Tensor]:
        """As torch takes them."""
        x, given = sources[0], iter(sources[1:])
        zeros = (x.new_zeros(self.runs, self.size),) * (1 if self.gru else 2)
        found = []
        for constant in self.first or zeros:
            if constant is None:
                found.append(next(given))
                continue
            state = constant.to(x.dtype).unsqueeze(1).expand(-1, batch, -1).contiguous()
            found.append(state[0] if self.one_step else state)
        return found

    def emit(self, emitter: Emitter, node: Node) -> int:
        engine = emitter.engine
        batch, steps = self.sizes(node)
        features = self.layers[0][0].given.shape[1]
        value = (
            engine.view(emitter.source(node), batch, (1, steps, features))
            if self.batch_first or self.one_step
            else _swapped(engine, emitter.source(node), (steps, batch, features))
        )
        firsts = iter(self._emit_first(emitter, node, value, batch))
        last: list[int] = []
        cells: list[int] = []
        for layer in self.layers:
            made = []
            # The second direction reads the sequence from its end, so its last state
            # belongs to step 0.
            for backwards, one in enumerate(layer):
                how = (bool(backwards), next(firsts, []))
                run = self._emit_direction(
                    emitter, node, value, one, (batch, steps), how
                )
                if self.keeps_state:
                    place = 0 if backwards else steps - 1
                    last.append(self._step(engine, run, place))
                # The cell stands behind the states.
                if self.keeps_cell:
                    cells.append(self._step(engine, run, steps))
                    count = steps * self.size
                    axes = [(count, 0, count, 1)]
                    run = engine.move(run, (1, steps, self.size), axes, 0, 0.0)
                made.append(run)
            value = (
                made[0]
                if len(made) == 1
                else self._side_by_side(engine, made, batch, steps)
            )
        finals = [cells] if self.one_step else [last, cells]
        for values, name in zip(finals, node.more, strict=False):
            if values:
                self._emit_final(emitter, node, name, values, batch)
        width = self.size * len(self.layers[0])
        return (
            value
            if self.batch_first or self.one_step
            else _swapped(engine, value, (batch, steps, width))
        )

    def _emit_first(
        self, emitter: Emitter, node: Node, value: int, batch: int
    ) -> list[list[int]]:
        """Of every direction the first state and, of an LSTM, the first cell; `value`
        has as many items as they.
        """
        engine, size = emitter.engine, self.size
        made: list[list[int]] = [[] for _ in range(self.runs)] if self.first else []
        given = 0
        for constant in self.first:
            given += constant is None
            for number, values in enumerate(made):
                if constant is not None:
                    # Zeros of the right size, to which the constant is added.
                    zeros = engine.move(value, (1, 1, size), [(size, 0, 0, 1)], 0, 0.0)
                    values.append(
                        engine.with_constant(zeros, constant[number].tolist(), False)
                    )
                    continue
                state = emitter.source(node, given)
                if self.runs > 1:
                    count = batch * size
                    whole = engine.view(state, 1, (1, 1, self.runs * count))
                    axes = [(count, 0, count, 1)]
                    state = engine.move(whole, (1, 1, count), axes, number * count, 0.0)
                values.append(engine.view(state, batch, (1, 1, size)))
        return made

    def _step(self, engine: Any, run: int, place: int) -> int:
        """One step of each item."""
        size = self.size
        axes = [(size, 0, size, 1)]
        return int(engine.move(run, (1, 1, size), axes, place * size, 0.0))

    def _emit_direction(
        self,
        emitter: Emitter,
        node: Node,
        value: int,
        one: Direction,
        sizes: tuple[int, int],
        how: tuple[bool, list[int]],
    ) -> int:
        engine, module = emitter.engine, emitter.module
        batch, steps = sizes
        backwards, first = how
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
        made = (
            engine.recurrent_from(gates, matrix, backwards, first, self.keeps_cell)
            if first or self.keeps_cell
            else engine.recurrent(gates, matrix, backwards)
        )
        emitter.belongs_to(node, made)
        return int(made)

    def _start(self, one: Direction) -> Epilogue:
        """What the input's gates begin with: of an LSTM both biases."""
        # An LSTM only ever adds both biases. A GRU keeps its own: see
        # `_emit_direction`.
        bias = float64_if_given(one.given_bias)
        if bias is not None and one.own_bias is not None and not self.gru:
            bias = bias + float64(one.own_bias)
        return Epilogue(scale=float64_if_given(one.given.row_scale), shift=bias)

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
        self, emitter: Emitter, node: Node, name: str, last: list[int], batch: int
    ) -> None:
        """What every layer and direction ends with: [layers · directions, batch, size]."""
        engine = emitter.engine
        whole = [engine.view(state, 1, (batch * self.size, 1, 1)) for state in last]
        value = whole[0] if len(whole) == 1 else engine.concatenate(whole)
        emitter.also(node, name, value, node.more[name].shape)

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
