"""Energy-based pruning by population search (Salehinejad and Valaee): paper 4."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from tersify.checks import check_choice, check_given, check_range, check_whole
from tersify.methods.base import Bound, Method, Network, Site, Step, Transform
from tersify.methods.energy.bounds import Bounds
from tersify.methods.energy.fold import Evaluator, SearchedLayer
from tersify.methods.energy.gates import Gate, GateTransform, Whole
from tersify.methods.energy.generation import Engine
from tersify.methods.energy.objectives import OBJECTIVES, objective_of
from tersify.methods.energy.population import Population
from tersify.methods.energy.searches import SEARCHES, Settings
from tersify.methods.energy.unit_sites import UnitSite, gather_units
from tersify.methods.flat_weights import FlatWeights
from tersify.methods.registry import register
from tersify.userfile import names_function


@register("energy")
@dataclass(frozen=True, kw_only=True)
class Energy(Method):
    """Filters and neurons are dropped as a search over sub-networks finds best, while
    the network trains.

    `population` states (S) start with each unit active with probability `init` (P).
    `search`: `de` (binary differential evolution with `mutation` F and `crossover`
    C_r), `annealing` and `tempering` (`flip` units at `temperature`), `genetic`
    (`tournament`, `flip`) or `random`. `objective`: `margin` (eq. 3), `cross-entropy`
    or a function (logits, targets) → energies, also as "file.py:function";
    `size_weight` adds that times the kept fraction. `keep` bounds the fraction of the
    network's parameters (`count` = "units": of all units) that active units may own:
    `bound` = "exactly" (as near below it as whole units allow) or "at-most"; with
    `thrifty` costly units go first. A layer keeps at least one unit. `parents` =
    "same-batch" judges parents again on each batch, "stored" compares with their energy
    on an older one, as eq. 6 is written.

    The search ends when the mean energy comes within `tolerance` of the best at an
    epoch's end (eq. 7), or after the fraction `stagnation` of training; then the best
    state stays. `rows` consecutive rows form one unit: the head size, for a value
    projection. `coupled` finds units with the example given to `attach`: those that
    meet in an addition go together, and attention heads are units too. `every` searches
    in every n-th batch only. `fold` = false judges one candidate at a time, for
    networks that mix the samples of a batch; `memory_gib` bounds a pass.
    """

    quantizes: ClassVar[bool] = False
    search: str = "de"
    population: int = 8
    init: float = 0.5
    mutation: float = 0.5
    crossover: float = 0.5
    flip: float = 0.01
    temperature: float = 0.1
    tournament: int = 2
    objective: str | Callable[[Tensor, Tensor], Tensor] = "margin"
    size_weight: float = 0.0
    keep: float | None = None
    count: str = "parameters"
    bound: str = "exactly"
    thrifty: bool = False
    parents: str = "same-batch"
    stagnation: float = 0.5
    tolerance: float = 1e-5
    every: int = 1
    rows: int = 1
    coupled: bool = False
    fold: bool = True
    memory_gib: float = 4.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("search", self.search, list(SEARCHES))
        if not callable(self.objective) and not (
            isinstance(self.objective, str) and names_function(self.objective)
        ):
            check_choice("objective", self.objective, [*OBJECTIVES, "file.py:function"])
        # differential evolution mixes three others
        check_whole("population (S)", self.population, low=4)
        check_whole("tournament", self.tournament, low=2, high=self.population)
        check_whole("every", self.every, low=1)
        check_whole("rows", self.rows, low=1)
        check_whole("seed", self.seed)
        check_range(
            "init (P)", self.init, low=0.0, high=1.0, low_open=True, high_open=True
        )
        for what in ("mutation", "crossover", "flip"):
            check_range(what, getattr(self, what), low=0.0, high=1.0, low_open=True)
        check_range("stagnation", self.stagnation, low=0.0, high=1.0, low_open=True)
        check_range("temperature", self.temperature, low=0.0, high=1e9, low_open=True)
        check_range("size_weight", self.size_weight, low=0.0, high=1e9)
        check_range("tolerance", self.tolerance, low=0.0, high=1e9)
        check_range("memory_gib", self.memory_gib, low=0.0, high=1e6, low_open=True)
        check_given(check_range, "keep", self.keep, low=0.0, high=1.0, low_open=True)
        check_choice("count", self.count, ("parameters", "units"))
        check_choice("bound", self.bound, ("at-most", "exactly"))
        check_choice("parents", self.parents, ("same-batch", "stored"))
        if self.coupled and self.rows != 1:
            raise ValueError(
                f"coupled units are found as they are; leave rows out, got {self.rows}"
            )

    @property
    def needs_units(self) -> bool:
        return self.coupled

    def gather(self, sites: Sequence[Site], network: Network) -> Sequence[Site]:
        return gather_units(sites, network, rows=self.rows, coupled=self.coupled)

    def bind(self, sites: Sequence[Site]) -> Bound:
        makers = [site for site in sites if isinstance(site, UnitSite)]
        if not makers:
            raise ValueError(
                "energy drops units and the rule names no layer that has any: give it convolutions or linear layers "
                "other than the one that gives the network's output"
            )
        layers: dict[str, SearchedLayer] = {}
        for maker in makers:
            units = maker.units[0]
            if units.group not in layers:
                layers[units.group] = SearchedLayer(
                    Gate(units.count, maker.latent), maker.outlets
                )
        owned = {
            name: torch.zeros(layer.size + 1, dtype=torch.float64)
            for name, layer in layers.items()
        }
        transforms: list[Transform] = []
        for site in sites:
            if not site.units:
                transforms.append(Whole())
                continue
            units = site.units[0]
            transforms.append(GateTransform(layers[units.group].gate, units))
            fraction = torch.full(
                units.unit.shape,
                site.latent.numel() / len(units.unit),
                dtype=torch.float64,
            )
            # -1: of no unit
            owned[units.group].index_add_(
                0, units.unit.cpu() % (units.count + 1), fraction
            )
        costs = torch.cat([own[:-1] for own in owned.values()])
        work = Work(self, list(layers.values()), costs, makers[0].network_size)
        return Bound(sites, transforms, work)

    @property
    def needs_batches(self) -> bool:
        return True

    def project_(self, bound: Bound) -> None:
        """Nothing: a search leaves the latents alone."""

    def update(self, bound: Bound, step: Step) -> None:
        work = bound.shared
        assert isinstance(work, Work)
        progress = step.progress
        work.leave_out_covered_gates(bound)
        if step.without_training and not work.population.judged:
            raise ValueError(
                "energy searches while the network trains; attach it and call session.step(inputs, targets)"
            )
        # True at the first step of every epoch but the first: eq. 7 is tested where an
        # epoch has just ended.
        new_epoch = (
            progress.step > 0
            and progress.step % max(progress.steps // progress.epochs, 1) == 0
        )
        if work.population.searching:
            work.end_search_if_due(fraction=progress.fraction, new_epoch=new_epoch)
        if work.population.searching and progress.step % self.every == 0:
            # Falls from 1 to 0 at the step where the search must end.
            heat = 1.0 - progress.fraction / self.stagnation
            work.engine(step.model).run(
                step.inputs, step.targets, step=progress.step, heat=heat
            )

    def prepare(
        self, bound: Bound, weights: FlatWeights
    ) -> tuple[Tensor, Tensor] | None:
        work = bound.shared
        assert isinstance(work, Work)
        # An open gate lets all units through, and a prepared weight would be masked all
        # the same.
        if any(layer.gate.open for layer in work.layers):
            return None

        def spread_masks() -> Tensor:
            each = zip(bound.each(GateTransform), weights.tensors, strict=True)
            return weights.flatten(
                [gate.keep(latent.ndim).expand_as(latent) for gate, latent in each]
            )

        if work.population.searching:
            # on a GPU a search moves the gates by a graph, whose writes torch does not
            # count
            mask = spread_masks()
        else:
            gates = [
                cast("Tensor", layer.gate._buffers["mask"]) for layer in work.layers
            ]
            mask = weights.remembered("masks", gates, spread_masks)
        return weights.values * mask, mask

    def status(self, bound: Bound) -> dict[str, float]:
        assert isinstance(bound.shared, Work)
        return bound.shared.status()


class Work(nn.Module):
    """A search at work: the population, and the engine that is made when the first
    batch comes.
    """

    def __init__(
        self,
        method: Energy,
        layers: list[SearchedLayer],
        costs: Tensor,
        network_size: int,
    ) -> None:
        super().__init__()
        self.method, self.layers, self.network_size = method, layers, network_size
        device = layers[0].gate.mask.device
        generator = torch.Generator().manual_seed(method.seed)
        states = (
            torch.rand(method.population, len(costs), generator=generator) < method.init
        )
        self.population = Population(states.to(device))
        self.costs = costs.to(device)
        self.bounds = self._bounds()
        self._engine: Engine | None = None
        self._knows_covered = False

    def _bounds(self) -> Bounds:
        method, sizes = self.method, [layer.size for layer in self.layers]
        costs = torch.ones_like(self.costs) if method.count == "units" else self.costs
        bounds = Bounds(
            sizes,
            costs.float(),
            exactly=method.bound == "exactly",
            thrifty=method.thrifty,
        )
        if method.keep is None:
            return bounds
        whole = len(costs) if method.count == "units" else self.network_size
        without = whole - float(costs.sum())  # parameters that belong to no unit
        least = (without + bounds.needed()) / whole
        if method.keep < least:
            raise ValueError(
                f"keep must be at least {math.ceil(1e3 * least) / 1e3:g} here: parameters of no unit, and one unit "
                f"in each of the {len(sizes)} layers with units, may take that much of the network, got {method.keep:g}"
            )
        return replace(bounds, budget=method.keep * whole - without)

    def leave_out_covered_gates(self, bound: Bound) -> None:
        """A weight that γ and β silence needs no mask of its own in training.

        Unless something behind it in its chain looks at the weight, which is known when
        the first step comes.
        """
        if not self._knows_covered:
            self._knows_covered = True
            for site, gate in zip(bound.sites, bound.transforms, strict=True):
                if isinstance(gate, GateTransform):
                    gate.covered = (
                        isinstance(site, UnitSite)
                        and site.is_covered
                        and len(site.chain) == 1
                    )

    def engine(self, model: nn.Module) -> Engine:
        device = self.layers[0].gate.mask.device
        if self.costs.device != device:  # the model was moved
            self.population.to(device)
            self.costs = self.costs.to(device)
            self.bounds, self._engine = self._bounds(), None
        if self._engine is None:
            method = self.method
            self._engine = Engine(
                evaluator=Evaluator(
                    model,
                    self.layers,
                    objective_of(method.objective),
                    method.memory_gib * 2**30,
                    method.fold,
                ),
                search=SEARCHES[method.search](
                    Settings(
                        init=method.init,
                        mutation=method.mutation,
                        crossover=method.crossover,
                        flip=method.flip,
                        temperature=method.temperature,
                        tournament=method.tournament,
                    )
                ),
                bounds=self.bounds,
                population=self.population,
                rejudge_parents=method.parents == "same-batch",
                size_weight=method.size_weight,
                seed=method.seed,
            )
        return self._engine

    def end_search_if_due(self, *, fraction: float, new_epoch: bool) -> None:
        """Early state convergence, looked for once an epoch, and the stagnation
        threshold (paper 4, section 2.2).
        """
        population = self.population
        converged = False
        if new_epoch and population.judged:
            if self._engine is not None:
                self._engine.check_energies()
            converged = population.spread() <= self.method.tolerance
        if fraction >= self.method.stagnation or converged:
            population.searching = False
            self._engine = None  # its graph and buffers are not needed any more

    def kept_percent(self) -> float:
        """The parameters that active units own, with those that belong to no unit, over
        all: R of the paper.
        """
        active = torch.cat([layer.gate.mask for layer in self.layers]).to(self.costs)
        dropped = float(((1 - active) * self.costs).sum())
        return 100.0 * (1.0 - dropped / self.network_size)

    def status(self) -> dict[str, float]:
        population = self.population
        figures = {"kept": self.kept_percent()}
        if population.judged:
            figures |= {
                "energy": float(population.energies.min()),
                "energy_mean": float(population.energies.mean()),
                "diversity": population.diversity(),
            }
        figures["searching"] = float(population.searching)
        if revived := int(population.revived):
            figures["revived"] = float(revived)
        return figures
