"""Finds the units that can be removed without changing the network's outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from tersify.shrinking.constant_activations import constants
from tersify.units.groups import follow
from tersify.units.labels import FIXED
from tersify.units.operation_rules import operation_name
from tersify.units.trace import Trace
from tersify.units.walk import Walk, argument, units_along

_LAYERS = ("linear", "conv1d", "conv2d", "conv3d")
WORTH_SCATTERING = 1 / 8  # fewer rows do not pay for copying the output


@dataclass(frozen=True)
class Reader:
    """A layer that reads units: the columns of `weight` along `dim`, each with its
    unit.
    """

    node: fx.Node
    weight: str
    bias: str | None
    dim: int
    channel: int
    units: Tensor


@dataclass(frozen=True)
class Branch:
    """A layer that can compute fewer rows than it has outputs.

    `layer` makes the rows and `end` (itself, or the norm behind it) gives the output.
    `stays` are the rows that other layers need, `alive` says which of them are not zero.
    """

    end: str
    layer: str
    stays: Tensor
    alive: Tensor

    def source(self) -> Tensor:
        """For each row that stays its place among those that are computed, or their
        number where it is zero.
        """
        return torch.where(self.alive, self.alive.cumsum(0) - 1, self.alive.sum())


class Departures:
    """The units to remove, found and silenced step by step: what one leaves unread goes
    with the next step.
    """

    def __init__(self, traced: Trace, tensors: dict[str, Tensor]) -> None:
        self.traced = traced
        self.tensors = tensors
        self.walk: Walk = follow(traced)
        self.readers = self._readers()
        # A unit can only go if a layer makes it and a layer reads it: an output that
        # nobody reads may be asked for by the caller.
        made = {key for key, role in self.walk.roles.items() if role == "producer"}
        self.places = self.walk.labels.places()
        producers = {
            int(u)
            for key, units in self.places.items()
            if key in made
            for u in units.unique()
        }
        self.candidates = producers & {
            int(u) for r in self.readers for u in r.units.unique()
        } - {FIXED}
        self.gone: set[int] = set()
        self._units: dict[str, dict[int, Tensor]] = {}

    @torch.no_grad()
    def settle(self) -> set[int]:
        """All units that can go, after folding what they contribute into the biases
        behind them.
        """
        # Silencing units makes others unread or constant, so it goes on until a step
        # finds nothing new. Each step removes at least one, so this ends.
        new = self.candidates
        while new:
            # Computed anew, because the last step changed weights and biases.
            known = constants(self.traced, self.tensors)
            new = self._unneeded(known)
            self._silence_(new, known)
            self.gone |= new
        return self.gone - self._last_ones()

    def _readers(self) -> list[Reader]:
        found = []
        for node in self.traced.graph.nodes:
            name = operation_name(node) if node.op == "call_function" else ""
            if name != "linear" and not name.startswith("conv"):
                continue
            weight = self.walk.name_of(argument(node, "weight"))
            if (
                weight is None
                or self.walk.roles.get((self.walk.labels.holder(weight), 1)) is None
            ):
                continue
            # The dimension of the weight that holds input channels.
            dim = 0 if name.startswith("conv_transpose") else 1
            channel = -1 if name == "linear" else 1
            line = units_along(
                self.walk, self.walk.of(argument(node, "input")), channel
            )
            bias = self.walk.name_of(argument(node, "bias"))
            found.append(Reader(node, weight, bias, dim, channel, line))
        # Labels were still being tied above; their roots are final only now.
        return [
            Reader(
                r.node,
                r.weight,
                r.bias,
                r.dim,
                r.channel,
                self.walk.labels.roots(r.units),
            )
            for r in found
        ]

    def _unneeded(self, known: dict[fx.Node, Any]) -> set[int]:
        # A unit is needed if any reader multiplies it by a non-zero weight, unless it
        # is a constant that this reader can fold.
        needed = set[int]()
        for reader in self.readers:
            nothing, zero, _ = self._what_is_read(reader, known)
            needed |= set(reader.units[~(nothing | zero)].tolist())
        return self.candidates - self.gone - needed

    def _what_is_read(
        self, reader: Reader, known: dict[fx.Node, Any]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Per input channel: whether its columns are zero, whether it is a constant
        that folds away, and which.
        """
        weight = self.tensors[reader.weight]
        # [input channels, everything that multiplies them].
        columns = weight.movedim(reader.dim, 0).reshape(weight.shape[reader.dim], -1)
        nothing = (columns == 0).all(1).cpu()
        if len(nothing) != len(reader.units):  # groups share their columns' numbers
            nothing = nothing.repeat(len(reader.units) // len(nothing))
        x = known.get(argument(reader.node, "input"))
        if x is None:
            return nothing, torch.zeros_like(nothing), torch.zeros(len(nothing))
        # [positions, channels]: a channel is constant where all positions are known and
        # equal.
        lines = x.value.movedim(reader.channel, -1).reshape(-1, len(nothing))
        unknown = x.unknown.movedim(reader.channel, -1).reshape(-1, len(nothing)).any(0)
        constant = ~unknown & (lines == lines[:1]).all(0)
        # A zero needs no bias to take it up.
        folds = constant if self._can_fold(reader) else constant & (lines[0] == 0)
        return nothing, folds, lines[0]

    def _can_fold(self, reader: Reader) -> bool:
        """A constant becomes a bias where the layer has one of its own and no padding
        makes its borders differ.
        """
        if reader.bias is None or operation_name(reader.node).startswith(
            "conv_transpose"
        ):
            return False
        # A bias that two layers share would be changed for both.
        if len(argument(reader.node, "bias").users) > 1:
            return False
        if reader.channel == -1:
            return True
        # Near a border some taps read padding instead of the constant, so the sum of
        # all taps would be wrong there.
        padding = argument(reader.node, "padding")
        padded = padding != "valid" if isinstance(padding, str) else any(padding)
        return not padded and argument(reader.node, "groups") == 1

    def _silence_(self, new: set[int], known: dict[fx.Node, Any]) -> None:
        going = torch.tensor(sorted(new))
        for reader in self.readers:
            _, folds, value = self._what_is_read(reader, known)
            leaving = torch.isin(reader.units, going)
            weight = self.tensors[reader.weight]
            # bias += Σ over leaving channels of value · Σ over taps of weight. This
            # must come before the columns are set to zero below.
            add = torch.where(leaving & folds, value, 0.0).to(weight)
            if add.any():
                assert reader.bias is not None
                flat = weight.reshape(*weight.shape[:2], -1).sum(-1)
                self.tensors[reader.bias].add_(flat @ add)
        for name, tensor in self.tensors.items():
            for dim, units in self._along(name, tensor).items():
                # Buffers that follow are running statistics. They stay as they are:
                # with γ = β = 0 they have no effect.
                role = self.walk.roles[self.walk.labels.holder(name), dim]
                shape = [1] * tensor.dim()
                shape[dim] = -1
                if role != "follower" or isinstance(tensor, torch.nn.Parameter):
                    tensor.masked_fill_(
                        torch.isin(units, going).reshape(shape).to(tensor.device), 0.0
                    )

    def _along(self, name: str, tensor: Tensor) -> dict[int, Tensor]:
        """The units along each labelled dimension of a tensor."""
        if name not in self._units:
            labels = self.walk.labels
            holder = labels.holder(name)
            self._units[name] = {
                dim: labels.roots(labels.along(name, dim, size))
                for dim, size in enumerate(tensor.shape)
                if (holder, dim) in self.walk.roles
            }
        return self._units[name]

    def _last_ones(self) -> set[int]:
        """One unit for every tensor that would lose all of them."""
        # A layer without rows is none that torch can run.
        spared = set[int]()
        for name, tensor in self.tensors.items():
            for units in self._along(name, tensor).values():
                if set(units.tolist()) <= self.gone - spared:
                    spared.add(int(units[0]))
        return spared

    def kept(self, gone: set[int]) -> dict[str, dict[int, Tensor]]:
        """What stays of every tensor that loses something."""
        going = torch.tensor(sorted(gone), dtype=torch.int64)
        kept: dict[str, dict[int, Tensor]] = {}
        for name, tensor in self.tensors.items():
            for dim, units in self._along(name, tensor).items():
                stays = ~torch.isin(units, going)
                # Tensors that lose nothing are left as they are, with their identity.
                if not stays.all():
                    kept.setdefault(name, {})[dim] = stays.nonzero().flatten()
        return kept

    def locally_dead(self, gone: set[int]) -> list[Branch]:
        """Layers whose output is zero in channels that have to stay, because other
        layers add to them.
        """
        known = constants(self.traced, self.tensors)
        going = torch.tensor(sorted(gone), dtype=torch.int64)
        found = []
        for node, parameter, dim, labels in self.walk.carriers:
            # Behind batch norm it is the norm's output that others see.
            layer = (
                argument(node, "input")
                if operation_name(node) == "batch_norm"
                else node
            )
            weight = self._row_maker(layer)
            if weight is None or (layer is not node and len(layer.users) > 1):
                continue
            # The norm behind this layer is a carrier of its own and is looked at
            # instead.
            if layer is node and all(
                operation_name(user) == "batch_norm" for user in node.users
            ):
                continue
            constant = known.get(node)
            if constant is None:
                continue
            # [positions, channels]: true where a channel may be other than zero.
            lines = (
                (constant.unknown | (constant.value != 0))
                .movedim(dim, -1)
                .reshape(-1, constant.value.shape[dim])
            )
            stays = ~torch.isin(self.walk.labels.roots(labels), going)
            alive = lines.any(0)[stays]
            if (~alive).float().mean() >= WORTH_SCATTERING:
                # At least one row is computed, for the same reason as in `_last_ones`.
                alive[0] |= not alive.any()
                found.append(
                    Branch(
                        _owner(parameter),
                        _owner(weight),
                        stays.nonzero().flatten(),
                        alive,
                    )
                )
        return found

    def _row_maker(self, node: Any) -> str | None:
        """The weight of a plain layer that is used once."""
        if (
            not isinstance(node, fx.Node)
            or node.op != "call_function"
            or operation_name(node) not in _LAYERS
        ):
            return None
        # Rows of a grouped convolution cannot be dropped one by one: all groups have to
        # stay of one size.
        if operation_name(node) != "linear" and argument(node, "groups") != 1:
            return None
        # A weight with a second user needs all its rows there.
        weight = argument(node, "weight")
        return self.walk.name_of(weight) if len(weight.users) == 1 else None


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0]
