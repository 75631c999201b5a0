"""Searches over binary states: each proposes children for a population and selects who
goes on.

Both verbs are pure functions of tensors with fixed shapes, without a look at any value,
so that a whole generation can be captured as one CUDA graph. Random numbers come in
from outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Draws(NamedTuple):
    """Uniform numbers in [0, 1): two for each unit of each state, and two for each pair
    of states.
    """

    units: Tensor  # (2, S, D)
    pairs: Tensor  # (2, S, S)


class Generation(NamedTuple):
    """States (S, D), True where a unit is active, and their energies (S,)."""

    states: Tensor
    energies: Tensor


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the searches can be told; each uses its own part."""

    init: float
    mutation: float
    crossover: float
    flip: float
    temperature: float
    tournament: int


class Search:
    """The interface: `propose` children, `select` among them and their parents; `heat`
    is 1 falling to 0.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def propose(self, parents: Generation, draws: Draws) -> Tensor:
        raise NotImplementedError

    def select(
        self, parents: Generation, children: Generation, draws: Draws, heat: Tensor
    ) -> Generation:
        """Each child replaces its parent where it is no worse (paper 4, eq. 6)."""
        return _replaced(parents, children, children.energies <= parents.energies)


class DifferentialEvolution(Search):
    """Binary differential evolution (paper 4, eq. 4–6)."""

    def propose(self, parents: Generation, draws: Draws) -> Tensor:
        first, second, third = (
            parents.states[index] for index in _three_others(draws.pairs[0])
        )
        # Eq. 4: where two other states differ, the first one is flipped with
        # probability F. XOR is the binary counterpart of adding a scaled difference.
        flipped = (second != third) & (draws.units[0] < self.settings.mutation)
        mutants = first ^ flipped
        return torch.where(
            draws.units[1] <= self.settings.crossover, mutants, parents.states
        )


class RandomSearch(Search):
    """Fresh states in every generation; what any search must beat."""

    def propose(self, parents: Generation, draws: Draws) -> Tensor:
        return draws.units[0] < self.settings.init


class Annealing(Search):
    """Simulated annealing: S chains, each flipping a few units, at a temperature that
    falls with time.
    """

    def propose(self, parents: Generation, draws: Draws) -> Tensor:
        return parents.states ^ (draws.units[0] < self.settings.flip)

    def select(
        self, parents: Generation, children: Generation, draws: Draws, heat: Tensor
    ) -> Generation:
        # The clamp keeps the last step, at heat 0, from dividing by zero.
        temperature = (self.settings.temperature * heat).clamp_min(1e-9)
        return _metropolis(parents, children, draws.pairs[0, 0], temperature)


class Tempering(Search):
    """Parallel tempering MCMC: state i walks at temperature T·2^−i, and neighbours
    exchange their states.
    """

    def propose(self, parents: Generation, draws: Draws) -> Tensor:
        return parents.states ^ (draws.units[0] < self.settings.flip)

    def select(
        self, parents: Generation, children: Generation, draws: Draws, heat: Tensor
    ) -> Generation:
        count = len(parents.energies)
        rungs = torch.arange(count, device=heat.device)
        temperatures = self.settings.temperature * torch.pow(
            0.5, rungs.to(parents.energies.dtype)
        )
        moved = _metropolis(parents, children, draws.pairs[0, 0], temperatures)
        # Pairs (0, 1), (2, 3), … or (1, 2), (3, 4), …, by the toss of a coin; a state
        # without a partner stays.
        odd = (draws.pairs[1, 0, 0] < 0.5).long()
        # The lower rung of each pair; partner = lower + (lower + 1) − own rung.
        lower = ((rungs - odd) // 2) * 2 + odd
        partner = 2 * lower + 1 - rungs
        partner = torch.where((partner >= 0) & (partner < count), partner, rungs)
        # Replica exchange is accepted with probability min(1, exp((β_i − β_j)(E_i −
        # E_j))). Both partners see the same gain and the same toss, so they agree.
        gain = (1 / temperatures - 1 / temperatures[partner]) * (
            moved.energies - moved.energies[partner]
        )
        toss = draws.pairs[1, 1][torch.minimum(rungs, partner)]
        chosen = torch.where(toss < gain.clamp_max(0.0).exp(), partner, rungs)
        return Generation(moved.states[chosen], moved.energies[chosen])


class Genetic(Search):
    """Parents by tournament, uniform crossover, a few flipped units; the best parent
    always survives.
    """

    def propose(self, parents: Generation, draws: Draws) -> Tensor:
        mother, father = (
            parents.states[_tournament(parents.energies, pairs, self.settings)]
            for pairs in draws.pairs
        )
        mixed = torch.where(draws.units[0] < 0.5, mother, father)
        return mixed ^ (draws.units[1] < self.settings.flip)

    def select(
        self, parents: Generation, children: Generation, draws: Draws, heat: Tensor
    ) -> Generation:
        elite = parents.energies.argmin().expand(len(parents.energies))
        best = Generation(parents.states[elite], parents.energies[elite])
        slots = torch.arange(len(elite), device=elite.device)
        # The best parent takes the worst child's place, unless even that one is better.
        keeps = (slots == children.energies.argmax()) & (
            best.energies <= children.energies
        )
        return _replaced(children, best, keeps)


SEARCHES: dict[str, type[Search]] = {
    "de": DifferentialEvolution,
    "annealing": Annealing,
    "tempering": Tempering,
    "genetic": Genetic,
    "random": RandomSearch,
}


def _replaced(old: Generation, new: Generation, where: Tensor) -> Generation:
    return Generation(
        torch.where(where[:, None], new.states, old.states),
        torch.where(where, new.energies, old.energies),
    )


def _metropolis(
    parents: Generation, children: Generation, tosses: Tensor, temperature: Tensor
) -> Generation:
    # Metropolis: a better child has worse_by = 0 and is always taken, since a toss is
    # below 1.
    worse_by = (children.energies - parents.energies).clamp_min(0.0)
    return _replaced(parents, children, tosses < (-worse_by / temperature).exp())


def _three_others(uniform: Tensor) -> Tensor:
    """(3, S): for each state three mutually different others, each choice equally
    likely.
    """
    own = torch.eye(len(uniform), dtype=torch.bool, device=uniform.device)
    # Sorting random keys gives a random order; 2.0 puts a state itself behind all
    # others.
    return uniform.masked_fill(own, 2.0).argsort(1)[:, :3].T


def _tournament(energies: Tensor, uniform: Tensor, settings: Settings) -> Tensor:
    """(S,): for each slot the best of a few states drawn without replacement."""
    entrants = uniform.argsort(1)[:, : settings.tournament]
    winners = energies[entrants].argmin(1, keepdim=True)
    return entrants.gather(1, winners)[:, 0]
