"""States that respect the bounds: at least one unit in each layer, and a fraction of
active units or parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Bounds:
    """`costs` (D,) is what each unit counts, `budget` how much the active ones may sum
    to (None: no bound).

    `exactly` fills up with units at random where a state stays below the budget. With
    `thrifty` a unit is as likely to be dropped as it is costly, otherwise all are
    equally likely.
    """

    layer_sizes: Sequence[int]
    costs: Tensor
    budget: float | None = None
    exactly: bool = False
    thrifty: bool = False

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < self.needed():
            raise ValueError(
                f"one unit in each layer may cost {self.needed():g}, and the budget is {self.budget:g}"
            )

    def needed(self) -> float:
        """What one unit in each layer may cost: as much as the costliest do."""
        return sum(float(own.max()) for own in self.costs.split(list(self.layer_sizes)))

    def repaired(self, states: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest states within the bounds, ties broken by `uniform` (S, D); and
        how many layers were empty.

        Pure tensor code with fixed shapes, without a look at any value.
        """
        # Random keys in [0, 1): whoever ranks highest is kept first.
        luck = uniform
        if self.thrifty:  # Efraimidis and Spirakis: sampling with weights 1 / cost
            luck = uniform ** (self.costs / self.costs.mean())
        # An active unit ranks in [1, 2) and an inactive one in [0, 1), so a layer's
        # survivor is an active unit wherever it has one.
        needed = self._one_in_each_layer(luck + states)
        empty = (needed & ~states).sum()
        if self.budget is None:
            return states | needed, empty
        # Four classes that cannot mix, since luck stays below 1: needed and active,
        # needed, active, and the rest.
        rank = luck + 2.0 * states + 4.0 * needed
        order = rank.argsort(1, descending=True)
        # Prefix sums of the ranked costs (S, D): units are kept from the front as long
        # as the budget lasts. `needed` units rank first and the budget covers them, as
        # `__post_init__` checked.
        spent = self.costs[order].cumsum(1)
        affordable = torch.zeros_like(states).scatter_(1, order, spent <= self.budget)
        # Without `exactly`, units that the state had switched off stay off although
        # there is budget left for them.
        return (affordable if self.exactly else affordable & (states | needed)), empty

    def _one_in_each_layer(self, rank: Tensor) -> Tensor:
        """True at the highest-ranking unit of each layer; active units rank above all
        others.
        """
        # The extra column of −1 is what the slots behind a small layer's last unit
        # point to; it ranks below every real unit, so the argmax never picks it. Shape
        # (S, layers, largest layer).
        padded = torch.cat([rank, rank.new_full((len(rank), 1), -1.0)], 1)[
            :, self._slots
        ]
        # The argmax counts within a layer; its first unit's index makes it an index
        # over all units.
        first = padded.argmax(2) + self._slots[:, 0]
        return torch.zeros_like(rank, dtype=torch.bool).scatter_(1, first, True)

    @functools.cached_property
    def _slots(self) -> Tensor:
        """(layers, largest layer): the units of each layer, filled up with the index
        behind the last unit.
        """
        last, start, rows = len(self.costs), 0, []
        for size in self.layer_sizes:
            rows.append(
                [*range(start, start + size), *[last] * (max(self.layer_sizes) - size)]
            )
            start += size
        return torch.tensor(rows, device=self.costs.device)
