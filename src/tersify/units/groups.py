"""Unit groups: the classes of labels, arranged by the layers that make them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from tersify.units.labels import FIXED, Labels
from tersify.units.operation_rules import rule_for, writes_in_place
from tersify.units.trace import Example, Trace, trace
from tersify.units.walk import Role, Walk, no_units


@dataclass(frozen=True, eq=False)
class Member:
    """One dimension of one parameter or buffer. `unit` holds for each index its unit in
    the group, or -1.
    """

    name: str
    dim: int
    role: Role
    unit: Tensor

    def spread(self, per_unit: Tensor, other: float | bool = 1) -> Tensor:
        """One value per unit → one value per index, `other` where the index belongs to
        no unit of the group.
        """
        unit = self.unit.to(per_unit.device)
        return torch.where(unit < 0, other, per_unit[unit.clamp(min=0)])

    def over(self, tensor: Tensor, per_unit: Tensor, other: float | bool = 1) -> Tensor:
        """`spread`, shaped to broadcast over the tensor."""
        shape = [1] * tensor.dim()
        shape[self.dim] = -1
        return self.spread(per_unit, other).reshape(shape)


@dataclass(frozen=True, eq=False)
class Carrier:
    """A module whose output carries the units along `dim`: multiplying it there by a
    mask silences them.
    """

    module: str
    dim: int
    unit: Tensor

    spread = Member.spread


@dataclass(frozen=True, eq=False)
class UnitGroup:
    """Units of one kind (`filter`, `neuron` or `head`) that one layer, or several
    coupled layers, make.
    """

    name: str
    kind: str
    size: int
    members: tuple[Member, ...]
    carriers: tuple[Carrier, ...]

    @property
    def producers(self) -> tuple[Member, ...]:
        return tuple(m for m in self.members if m.role == "producer")

    @property
    def followers(self) -> tuple[Member, ...]:
        return tuple(m for m in self.members if m.role == "follower")

    @property
    def consumers(self) -> tuple[Member, ...]:
        return tuple(m for m in self.members if m.role == "consumer")

    @property
    def coupled(self) -> bool:
        """Several layers make the units together, as those that meet in a residual
        addition do.
        """
        return len(self.producers) > 1

    def silence_(self, model: nn.Module, dead: Tensor) -> None:
        """Zero the rows, biases and γ, β of the units where `dead` (size,) is true:
        they give exactly 0 then.
        """
        # A mask of another length would broadcast or index the wrong units.
        if dead.shape != (self.size,):
            raise ValueError(
                f"group {self.name!r} has {self.size} units, got a mask of shape {tuple(dead.shape)}"
            )
        parameters = dict(model.named_parameters(remove_duplicate=False))
        for member in self.members:
            # Consumers need not change: they read zeros now. Buffers such as running
            # statistics have no effect behind a zero γ.
            if member.role != "consumer" and member.name in parameters:
                tensor = parameters[member.name].data
                tensor.masked_fill_(
                    member.over(tensor, dead.to(tensor.device), False), 0.0
                )


def find_units(model: nn.Module, example: Example) -> list[UnitGroup]:
    """The groups of units that can go from the model. `example` is what
    `model(example)` takes; one sample does.
    """
    return groups_of(trace(model, example))


def groups_of(traced: Trace) -> list[UnitGroup]:
    walk = follow(traced)
    # From labels to groups: find which units may go, give each a group and a number
    # within it, then say for each parameter which index is which unit.
    roots = {key: r for key, r in walk.labels.places().items() if key in walk.roles}
    places = _Places(_groups_of_units(walk, roots, _free_units(walk, roots)))
    members: dict[int, list[Member]] = {}
    for (name, dim), root in roots.items():
        for group, unit in places.split(root):
            members.setdefault(group, []).append(
                Member(name, dim, walk.roles[name, dim], unit)
            )
    carriers: dict[int, list[Carrier]] = {}
    for node, parameter, dim, labels in walk.carriers:
        # Parts of a packed attention weight are no modules of the user's model.
        if parameter not in traced.packed and not _normed(node):
            for group, unit in places.split(walk.labels.roots(labels)):
                carriers.setdefault(group, []).append(
                    Carrier(parameter.rpartition(".")[0], dim, unit)
                )
    dims = traced.dims
    return [
        _group(places.sizes[group], tuple(held), tuple(carriers.get(group, ())), dims)
        for group, held in members.items()
    ]


def follow(traced: Trace) -> Walk:
    """Labels through the whole graph."""
    walk = Walk(Labels(traced.packed), traced.stored)
    for node in traced.graph.nodes:
        if node.op == "call_function":
            rule = rule_for(node)
            walk.values[node] = rule(walk, node) if rule else walk.unknown(node)
            _pass_on_mutation(walk, node)
        # What leaves the network has a meaning to the caller, so it stays.
        elif node.op == "output":
            walk.unknown(node)
        elif node not in traced.stored:
            walk.values[node] = no_units(node)
    return walk


def _pass_on_mutation(walk: Walk, node: fx.Node) -> None:
    if not writes_in_place(node):
        return
    first = node.args[0] if node.args else None
    if isinstance(first, fx.Node) and first not in walk.stored:
        walk.values[first] = walk.values[node]


def _free_units(walk: Walk, roots: dict[tuple[str, int], Tensor]) -> set[int]:
    """Units that some layer makes and some layer reads. What nobody reads is left
    alone: it may be asked for later.
    """
    made, read = set[int](), set[int]()
    for key, root in roots.items():
        # Followers, such as biases, neither make a unit nor need one.
        if walk.roles[key] == "producer":
            made.update(root.tolist())
        elif walk.roles[key] == "consumer":
            read.update(root.tolist())
    return (made & read) - {FIXED}


def _groups_of_units(
    walk: Walk, roots: dict[tuple[str, int], Tensor], free: set[int]
) -> dict[int, int]:
    """Each unit's group, named by its first unit: the units of one producer are
    together, in its order.
    """
    home: dict[int, int] = {}
    for key, root in roots.items():
        if walk.roles[key] != "producer":
            continue
        # dict.fromkeys keeps the producer's order and drops repeats: a head has many
        # rows.
        units = [u for u in dict.fromkeys(root.tolist()) if u in free]
        if not units:
            continue
        # Producers that share a unit form one group, so their earlier groups merge.
        met = {home[u] for u in units if u in home}
        new = min(met, default=units[0])
        for u in [u for u, h in home.items() if h in met]:
            home[u] = new
        home.update(dict.fromkeys(units, new))
    return home


class _Places:
    """Every unit's group and its number in there, to be looked up for many labels at
    once.
    """

    def __init__(self, homes: dict[int, int]) -> None:
        self.sizes: dict[int, int] = {}
        # Tables by label, −1 for labels that belong to no group.
        top = max(homes, default=0) + 1
        self._group, self._number = torch.full((top,), -1), torch.full((top,), -1)
        for unit, home in homes.items():
            self._group[unit] = home
            self._number[unit] = self.sizes.setdefault(home, 0)
            self.sizes[home] += 1

    def split(self, roots: Tensor) -> list[tuple[int, Tensor]]:
        """The groups that labels belong to, each with the numbers of its units and -1
        elsewhere.
        """
        # Labels beyond the table are unknown; the clamp only keeps the index legal.
        inside = roots.clamp(max=len(self._group) - 1)
        known = roots < len(self._group)
        group = torch.where(known, self._group[inside], -1)
        number = self._number[inside]
        return [
            (g, torch.where(group == g, number, -1))
            for g in group.unique().tolist()
            if g >= 0
        ]


def _group(
    size: int,
    members: tuple[Member, ...],
    carriers: tuple[Carrier, ...],
    dims: dict[str, int],
) -> UnitGroup:
    first = next(m for m in members if m.role == "producer")
    # A unit that owns several rows of a linear layer is an attention head.
    repeated = any(
        (m.unit[m.unit >= 0].bincount() > 1).any()
        for m in members
        if m.role == "producer"
    )
    kind = "head" if repeated else "neuron"
    # A weight of more than two dimensions is a convolution's.
    if dims[first.name] > 2:
        kind = "filter"
    return UnitGroup(first.name.rpartition(".")[0], kind, size, members, carriers)


def _normed(node: fx.Node) -> bool:
    """Whether batch norm is all that follows, so that the mask belongs behind it."""
    return all("batch_norm" in str(user.target) for user in node.users)
