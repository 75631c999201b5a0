"""One generation of the search: propose, judge, select, and make the best state the
sub-network in use.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tersify.methods.energy.bounds import Bounds
from tersify.methods.energy.fold import Evaluator, set_gates_
from tersify.methods.energy.population import Population
from tersify.methods.energy.searches import Draws, Generation, Search
from tersify.ranks import mean_over_ranks_, world


@dataclass(eq=False)
class Engine:
    """Runs generations. On CUDA a generation becomes one graph when batches of the same
    shape come for the third time.

    The graph reads the weights where they lie, so it stays valid while the optimizer
    changes them.
    """

    evaluator: Evaluator
    search: Search
    bounds: Bounds
    population: Population
    rejudge_parents: bool
    size_weight: float
    seed: int
    _weights: tuple[Tensor, ...] = ()
    _seen: Any = None
    _times_seen: int = 0
    _graph: torch.cuda.CUDAGraph | None = None
    _can_capture: bool = True
    _held: dict[str, Tensor] = field(default_factory=dict)

    def run(self, inputs: Any, targets: Any, *, step: int, heat: float) -> None:
        """One generation on this batch."""
        inputs, targets = _checked(inputs, targets)
        draws = self._draw(step)
        self._held.setdefault("heat", self.population.energies.new_ones(())).fill_(heat)
        signature = self._signature(inputs, targets)
        if signature != self._seen:
            self._seen, self._times_seen, self._graph = signature, 0, None
        self._times_seen += 1
        # The first pass finds out how many candidates fit at once, the second makes the
        # libraries ready for them.
        if self._times_seen > 2 and self._may_capture(inputs):
            self._replay(inputs, targets, draws)
            return
        self._generation(inputs, targets, draws)
        if not (inputs.is_cuda and self.population.judged):
            self.check_energies()
        self.population.judged = True

    def check_energies(self) -> None:
        """Waits for the device, so on CUDA it is called now and then only."""
        energies = self.population.energies
        if not bool(energies.isfinite().all()):
            raise ValueError(
                f"the objective gave energies that are not finite ({energies.tolist()}); "
                "either the objective divides by zero, or the network's outputs are NaN already: lower the rate"
            )

    def _generation(self, inputs: Tensor, targets: Tensor, draws: Draws) -> None:
        population = self.population
        # The first states are drawn without a look at the bounds, so parents are
        # repaired too.
        parents, revived = self.bounds.repaired(population.states, draws.units[0])
        before = Generation(parents, population.energies)
        # `propose` may have used units[1] unit by unit. Shifted by one unit, the same
        # numbers are independent of that choice.
        children, more = self.bounds.repaired(
            self.search.propose(before, draws), draws.units[1].roll(1, 1)
        )
        if self.rejudge_parents or not population.judged:
            energies = self._judged(torch.cat([parents, children]), inputs, targets)
            before = Generation(parents, energies[: len(parents)])
            after = Generation(children, energies[len(parents) :])
        else:
            after = Generation(children, self._judged(children, inputs, targets))
        chosen = self.search.select(before, after, draws, self._held["heat"])
        # In place, for the graph and for the checkpoint, which both hold these tensors.
        population.states.copy_(chosen.states)
        population.energies.copy_(chosen.energies)
        population.revived.add_(revived + more)
        set_gates_(self.evaluator.layers, population.best())

    def _judged(self, states: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        energies = self.evaluator.energies(states, inputs, targets)
        # Every rank judges its own part of the batch and must select the same states.
        mean_over_ranks_([energies])
        # Behind the mean: the size of a state is the same on all ranks.
        if self.size_weight:
            size = (states * self.bounds.costs).sum(1) / self.bounds.costs.sum()
            energies = energies + self.size_weight * size.to(energies.dtype)
        return energies

    def _draw(self, step: int) -> Draws:
        """A function of the seed and the step alone, so that a resumed run and all
        ranks draw the same.
        """
        count, units = self.population.states.shape
        device = self.population.states.device
        # A hash, since neighbouring seeds of one generator give related streams.
        digest = hashlib.sha256(f"{self.seed}/{step}/energy".encode()).digest()
        generator = torch.Generator(device).manual_seed(
            int.from_bytes(digest[:6], "little")
        )
        for name, shape in (("units", (2, count, units)), ("pairs", (2, count, count))):
            # Always the same memory: a captured graph reads its numbers there.
            self._held.setdefault(name, torch.empty(shape, device=device)).uniform_(
                generator=generator
            )
        return Draws(self._held["units"], self._held["pairs"])

    def _may_capture(self, inputs: Tensor) -> bool:
        return inputs.is_cuda and world() == 1 and self._can_capture

    def _signature(self, inputs: Tensor, targets: Tensor) -> Any:
        """What a graph depends on: shapes, and where the weights lie."""
        # Gathered once, because walking a model's modules in every step costs more than
        # the rest.
        self._weights = self._weights or tuple(self.evaluator.model.parameters())
        weights = tuple(weight.data_ptr() for weight in self._weights)
        return (
            inputs.shape,
            inputs.stride(),
            inputs.dtype,
            targets.shape,
            targets.dtype,
            weights,
        )

    def _replay(self, inputs: Tensor, targets: Tensor, draws: Draws) -> None:
        if self._graph is None:
            self._held |= {
                "inputs": torch.empty_like(inputs),
                "targets": torch.empty_like(targets),
            }
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    self._generation(self._held["inputs"], self._held["targets"], draws)
            except Exception:
                # an objective or a layer that waits for the device: go on without a
                # graph
                self._can_capture = False
                torch.cuda.synchronize()
                self._generation(inputs, targets, draws)
                return
            self._graph = graph
        self._held["inputs"].copy_(inputs)
        self._held["targets"].copy_(targets)
        self._graph.replay()


def _checked(inputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
    if inputs is None or targets is None:
        raise ValueError(
            f"the energy search judges sub-networks on labelled batches and got no "
            f"{'inputs' if inputs is None else 'targets'}; call session.step(inputs, targets)"
        )
    # A dict or a list of inputs cannot be laid end to end for several candidates.
    for what, value in (("inputs", inputs), ("targets", targets)):
        if not isinstance(value, Tensor):
            raise ValueError(f"{what} must be one tensor, got a {type(value).__name__}")
    if len(inputs) != len(targets) or not len(inputs):
        raise ValueError(
            f"inputs and targets must have the same nonzero length, got {len(inputs)} and {len(targets)}"
        )
    return inputs, targets
