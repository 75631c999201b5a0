"""How long a population of sub-networks takes to judge, for one image: the rows of
`energy-time`.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tersify.lab.experiments.experiment_file import Row
from tersify.lab.networks import network
from tersify.lab.trainer import pick_device
from tersify.methods import Energy
from tersify.methods.base import Network
from tersify.methods.energy.energy import Work
from tersify.methods.energy.fold import Evaluator
from tersify.sites import find_sites, install

POPULATION = 8


def measure(
    row: Row,
    *,
    seed: int,
    out: Path,
    smoke: bool,
    data_root: Path | None,
    device: str = "auto",
    **settings: Any,
) -> dict[str, float]:
    """Median of a few rounds on one random batch: images need not be real for a time."""
    place = pick_device(device)
    batch, rounds = (4, 2) if smoke else (128, 10)
    torch.manual_seed(seed)
    options = dict(row.options) | ({"width": 0.25} if smoke else {})
    model = network(row.target, **options).to(place).eval()
    images = torch.randn(batch, 3, 32, 32, device=place)
    labels = torch.randint(0, 10, (batch,), device=place)
    plain = copy.deepcopy(model)
    evaluator, states = _population(model)
    works: dict[str, Callable[[], Tensor]] = {
        "plain": lambda: plain(images),
        "one-by-one": lambda: evaluator.one_by_one(states, images, labels),
        "folded": _captured(lambda: evaluator.energies(states, images, labels), place),
    }
    with (
        torch.no_grad(),
        torch.autocast(place.type, torch.bfloat16, enabled=place.type == "cuda"),
    ):
        # The plain pass is captured like the folded one, or a GPU would wait for Python
        # there alone.
        works["plain"] = _captured(works["plain"], place)
        seconds = {
            name: _seconds(works[name], rounds, place)
            for name in dict.fromkeys(("plain", row.id))
        }
    return {
        "microseconds": 1e6 * seconds[row.id] / batch,
        "times_plain": seconds[row.id] / seconds["plain"],
    }


def _population(model: nn.Module) -> tuple[Evaluator, Tensor]:
    """A search as a session would begin it."""
    method = Energy(population=POPULATION)
    every = find_sites(model)
    sites = method.gather(
        [site for site in every if site.latent.ndim > 1], Network(model, every)
    )
    bound = method.bind(sites)
    for site, transform in zip(sites, bound.transforms, strict=True):
        install(site, transform)
    assert isinstance(bound.shared, Work)
    return bound.shared.engine(model).evaluator, bound.shared.population.states


def _captured(work: Callable[[], Tensor], place: torch.device) -> Callable[[], Tensor]:
    """On CUDA as one graph, as the search itself runs it."""
    if place.type != "cuda":
        return work
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


def _seconds(work: Callable[[], Tensor], rounds: int, place: torch.device) -> float:
    times = []
    for _ in range(rounds + 1):
        if place.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if place.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    # The first round warms up caches and is left out.
    return statistics.median(times[1:])
