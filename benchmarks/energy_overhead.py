"""What the energy search costs: a training step with the search included against the
plain step, in one run.

On a GPU: ResNet-18 and ResNet-50, 32×32 images, batch 128, S = 8, bf16, both eager and
both compiled; with the parents judged again on each batch (the default) and, eager,
with their stored energies. On a CPU: one generation folded into the batch against one
candidate at a time.

usage: python benchmarks/energy_overhead.py [--quick] [--json FILE] [--device cpu|cuda] [--batch N]
       [--network resnet18] [--mode eager|compiled]     only that network, only those steps; both may be repeated
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

# first: it sets what must stand before torch is imported
from common import interleaved, report, training_step

import tersify
from tersify import Recipe, Rule
from tersify.lab import network
from tersify.methods import Energy

NETWORKS = ("resnet18", "resnet50")
MODES = ("eager", "compiled")
POPULATION = 8
METHODS: dict[str, Energy | None] = {
    "plain": None,
    "search": Energy(population=POPULATION, stagnation=1.0, tolerance=0.0),
    "search_stored": Energy(
        population=POPULATION, stagnation=1.0, tolerance=0.0, parents="stored"
    ),
}


def attached(model: torch.nn.Module, method: Energy) -> tersify.Session:
    return tersify.attach(
        model, Recipe(rules=(Rule(methods=(method,)),)), epochs=200, steps_per_epoch=391
    )


def stepper(
    name: str, method: Energy | None, *, device: str, batch: int, compiled: bool
) -> Callable[[], None]:
    """A training step with Adadelta, the search included."""
    torch.manual_seed(0)
    attach = partial(attached, method=method) if method else None
    adadelta = partial(torch.optim.Adadelta, lr=1.0)
    return training_step(
        network(name), attach, adadelta, device=device, batch=batch, compiled=compiled
    )


def medians_of(
    works: dict[str, Callable[[], object]], *, rounds: int, repeats: int, warm: int
) -> dict[str, float]:
    times = interleaved(works, rounds=rounds, repeats=repeats, warm=warm)
    return {name: statistics.median(values) for name, values in times.items()}


def training_steps(
    name: str, mode: str, *, device: str, batch: int, rounds: int, repeats: int
) -> dict[str, float]:
    compiled = mode == "compiled"
    works: dict[str, Callable[[], object]] = {
        kind: stepper(name, method, device=device, batch=batch, compiled=compiled)
        for kind, method in METHODS.items()
        if not (compiled and kind == "search_stored")  # compiling takes a minute each
    }
    medians = medians_of(works, rounds=rounds, repeats=repeats, warm=6)
    ratios = {
        kind: value / medians["plain"]
        for kind, value in medians.items()
        if kind != "plain"
    }
    shown = "".join(
        f"   {kind} {medians[kind]:8.2f} ms ({ratio:.2f}×)"
        for kind, ratio in ratios.items()
    )
    print(f"  {name:<9} {mode:<9} plain {medians['plain']:8.2f} ms{shown}", flush=True)
    return {f"{name}_{mode}_{kind}_ms": value for kind, value in medians.items()} | {
        f"{name}_{mode}_{kind}_ratio": value for kind, value in ratios.items()
    }


def generation(name: str, *, device: str, batch: int, rounds: int) -> dict[str, float]:
    """The population judged on one batch: folded, and one candidate at a time with
    really masked weights.
    """
    torch.manual_seed(0)
    model = network(name).to(device)
    images = torch.randn(batch, 3, 32, 32, device=device)
    labels = torch.randint(0, 10, (batch,), device=device)
    method = METHODS["search"]
    assert method is not None
    session = attached(model, method)
    session.step(images, labels)
    work = session._work[0].bound.shared
    evaluator = work.engine(model).evaluator
    states = work.population.states
    works: dict[str, Callable[[], object]] = {
        "folded": lambda: evaluator.energies(states, images, labels),
        "looped": lambda: evaluator.one_by_one(states, images, labels),
    }
    medians = medians_of(works, rounds=rounds, repeats=1, warm=1)
    print(
        f"  {name:<9} S = {POPULATION} folded {medians['folded']:9.1f} ms   one by one {medians['looped']:9.1f} ms "
        f"  loop/fold {medians['looped'] / medians['folded']:.2f}",
        flush=True,
    )
    return {
        f"{name}_folded_ms": medians["folded"],
        f"{name}_looped_ms": medians["looped"],
        f"{name}_loop_over_fold": medians["looped"] / medians["folded"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="few rounds, the small network only"
    )
    parser.add_argument(
        "--network",
        action="append",
        choices=NETWORKS,
        help="only this one; may be repeated",
    )
    parser.add_argument(
        "--mode",
        action="append",
        choices=MODES,
        help="only these steps; compiling takes a while",
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()
    on_gpu = args.device == "cuda"
    names = args.network or NETWORKS[: 1 if args.quick else None]
    rounds = 3 if args.quick else 9
    figures: dict[str, float] = {}
    gpu = torch.cuda.get_device_name() if on_gpu else None

    def keep(found: dict[str, float]) -> None:
        """Written after each part, so that a run that is cut short leaves what it has."""
        figures.update(found)
        report(
            "energy_overhead",
            figures,
            json_path=args.json,
            versions={"torch": torch.__version__},
            gpu=gpu,
            batch=args.batch,
            threads=torch.get_num_threads(),
        )

    print(
        f"batch {args.batch}, S = {POPULATION}, {args.device}, {torch.get_num_threads()} threads; interleaved medians"
    )
    print(
        "the population judged on one batch; on a GPU also one training step (bf16, Adadelta)"
    )
    for name in names:
        keep(generation(name, device=args.device, batch=args.batch, rounds=rounds))
        for mode in (args.mode or MODES) if on_gpu else ():
            keep(
                training_steps(
                    name,
                    mode,
                    device=args.device,
                    batch=args.batch,
                    rounds=rounds,
                    repeats=20,
                )
            )


if __name__ == "__main__":
    main()
