"""Mixed precision that finds itself: measure each layer alone, then fill a budget by
the knapsack.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import tersify
from tersify.lab.data import Data, Split, normalize
from tersify.lab.trainer import check_fits, evaluate
from tersify.methods import Lookup, Method
from tersify.recipe import Recipe, Rule
from tersify.sites import find_sites
from tersify.tensor import CompressedTensor, Table

CELLS = 4000  # the knapsack counts bytes in this many steps
FINE_POINTS = 60  # plans among which a drop in quality is searched


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Either the bytes that codes and tables may take together, or how far the quality
    may fall.
    """

    bytes: int | None = None
    drop: float | None = None

    def __post_init__(self) -> None:
        if (self.bytes is None) == (self.drop is None):
            raise ValueError("a budget is bytes or a drop in quality, one of them")
        given = self.bytes if self.drop is None else self.drop
        assert given is not None
        if given < 0:
            raise ValueError(f"a budget must not be negative, got {given}")


@dataclass(frozen=True)
class Choice:
    """One way to store one weight: its method, its bytes, and how much it alone moves
    the outputs.
    """

    method: Method
    size_bytes: int
    damage: float


@dataclass(frozen=True)
class Plan:
    """A choice for each weight."""

    choices: dict[str, Choice]

    @property
    def size_bytes(self) -> int:
        return sum(choice.size_bytes for choice in self.choices.values())

    @property
    def damage(self) -> float:
        return sum(choice.damage for choice in self.choices.values())

    def recipe(self) -> Recipe:
        """One rule for all the weights that share a method; weights without a choice
        stay as they are.
        """
        together: dict[Method, list[str]] = {}
        for name, choice in self.choices.items():
            together.setdefault(choice.method, []).append(name)
        rules = [
            Rule(weights=tuple(names), methods=(method,))
            for method, names in together.items()
        ]
        return Recipe(
            rules=tuple(rules),
            description=f"Allocated: {self.size_bytes:,} bytes of codes and tables",
        )


def candidates() -> list[Method]:
    """Optimal tables of 2 to 6 bits, and 8-bit fixed point."""
    return [
        *(Lookup(n=n) for n in (2, 3, 4, 5, 6)),
        Lookup(n=8, placement="uniform", fit="nearest", shift=False),
    ]


@torch.no_grad()
def measure(
    model: nn.Module,
    inputs: Sequence[Tensor],
    methods: Sequence[Method],
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, list[Choice]]:
    """For each weight of two dimensions or more, what each method costs and does, all
    other weights untouched.

    Damage is the mean squared change of the outputs relative to their variance.
    """
    model = copy.deepcopy(model).eval()
    reference = torch.cat(list(map(model, inputs)))
    # Relative to the variance, so damages of different networks compare; constant
    # outputs have none.
    spread = float(reference.var()) or 1.0
    table: dict[str, list[Choice]] = {}
    for site in find_sites(model):
        if site.latent.ndim < 2:
            continue
        # Each method begins from the same weights, all others untouched.
        original = site.latent.detach().clone()
        table[site.name] = []
        for method in methods:
            if (
                isinstance(method, Lookup)
                and method.placement != "uniform"
                and original.numel() < 2**method.n
            ):
                continue
            packed = tersify.compress_(
                model, Recipe(rules=(Rule(weights=site.name, methods=(method,)),))
            )
            changed = torch.cat(list(map(model, inputs)))
            damage = float((changed - reference).square().mean()) / spread
            compressed = packed[site.name]
            assert isinstance(compressed, CompressedTensor)
            stored = Table.of(compressed)
            table[site.name].append(
                Choice(method, stored.code_bytes() + stored.table_bytes(), damage)
            )
            site.latent.copy_(original)
        tell(
            f"{site.name}: "
            + ", ".join(f"{c.size_bytes:,} B {c.damage:.2g}" for c in table[site.name])
        )
    if not table:
        raise ValueError("the network has no weight of two dimensions or more")
    return table


def knapsack(table: Mapping[str, Sequence[Choice]], limit_bytes: int) -> Plan:
    """The plan with the least total damage within the limit."""
    least = sum(min(c.size_bytes for c in choices) for choices in table.values())
    if least > limit_bytes:
        raise ValueError(
            f"the smallest choices take {least:,} bytes, the budget is {limit_bytes:,}; give it more"
        )
    # Sizes are rounded up to cells, so no plan exceeds the limit; one just above the
    # least may fit only the least.
    cell = max(limit_bytes / CELLS, 1.0)
    capacity = int(limit_bytes // cell)
    best = np.zeros(capacity + 1)
    picks: list[np.ndarray] = []
    names = list(table)
    for name in names:
        reached = np.full((len(table[name]), capacity + 1), np.inf)
        for index, choice in enumerate(table[name]):
            cells = int(np.ceil(choice.size_bytes / cell))
            if cells <= capacity:
                # best[c] is the least damage of the weights so far in at most c cells.
                reached[index, cells:] = best[: capacity + 1 - cells] + choice.damage
        picks.append(reached.argmin(0))
        best = reached.min(0)
    if not np.isfinite(best[capacity]):
        return Plan(
            {
                name: min(table[name], key=lambda c: (c.size_bytes, c.damage))
                for name in names
            }
        )
    # Walk back from the full capacity: each pick says how many cells were left to the
    # others.
    left, chosen = capacity, {}
    for name, pick in zip(reversed(names), reversed(picks), strict=True):
        choice = table[name][int(pick[left])]
        chosen[name] = choice
        left -= int(np.ceil(choice.size_bytes / cell))
    return Plan({name: chosen[name] for name in names})


def trade_off(table: dict[str, list[Choice]], points: int = 12) -> list[Plan]:
    """Plans from the smallest to the largest, without repeats."""
    sizes = [[choice.size_bytes for choice in choices] for choices in table.values()]
    least, most = sum(map(min, sizes)), sum(map(max, sizes))
    plans: list[Plan] = []
    for limit in np.geomspace(least, most, points):
        plan = knapsack(table, int(limit))
        # A higher limit may buy nothing that the last one could not.
        if not plans or plan.size_bytes > plans[-1].size_bytes:
            plans.append(plan)
    return plans


def smallest_within(
    plans: Sequence[Plan], quality: Callable[[Plan], float], floor: float
) -> tuple[Plan, float]:
    """The smallest plan whose measured quality is at least `floor`, by bisection over
    plans of growing size.
    """
    low, high = 0, len(plans) - 1
    found = plans[high], quality(plans[high])
    if found[1] < floor:
        raise ValueError(
            f"even {plans[high].size_bytes:,} bytes reach only {found[1]:.2f}, {floor:.2f} was asked for"
        )
    # Quality is taken to rise with size, so halving finds the smallest; `found` is
    # always a plan that was measured.
    while low < high:
        middle = (low + high) // 2
        value = quality(plans[middle])
        if value >= floor:
            high, found = middle, (plans[middle], value)
        else:
            low = middle + 1
    return found


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """The plan that was chosen among `plans`, and the accuracy before and after it, in
    percent.
    """

    chosen: Plan
    plans: Sequence[Plan]
    before: float
    after: float
    held_out: int  # training images that the accuracies are measured on


def allocate_on(
    model: nn.Module,
    data: Data,
    wanted: Budget,
    *,
    images: int,
    tell: Callable[[str], None] = lambda line: None,
) -> Allocation:
    """Sensitivity on `images` training images; accuracies, and with a drop the choice,
    on others of them.
    """
    check_fits(model, data)
    if images >= len(data.train):
        raise ValueError(
            f"--images {images} leaves none of the {len(data.train)} training images of {data.name} to measure "
            "accuracy on; give fewer"
        )
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
    # Four times as many held out: a percentage needs more images than a mean squared
    # error.
    seen, held = order[:images], order[images : 5 * images]
    inputs = [normalize(part, data) for part in data.train.images[seen].split(250)]
    table = measure(model, inputs, candidates(), tell)
    split = Split(data.train.images[held], data.train.labels[held])

    def accuracy(changed: nn.Module) -> float:
        return evaluate(changed, data, split, device=torch.device("cpu"), amp=False)[
            "accuracy"
        ]

    def quality(plan: Plan) -> float:
        changed = copy.deepcopy(model)
        tersify.compress_(changed, plan.recipe())
        return accuracy(changed)

    before = accuracy(model)
    if wanted.bytes is not None:
        chosen = knapsack(table, wanted.bytes)
        after = quality(chosen)
    else:
        assert wanted.drop is not None
        chosen, after = smallest_within(
            trade_off(table, FINE_POINTS), quality, before - wanted.drop
        )
    return Allocation(
        chosen=chosen,
        plans=trade_off(table),
        before=before,
        after=after,
        held_out=len(held),
    )
