"""What a ternary session costs: its training step against the same plain loop, side by side in one run.

usage: python benchmarks/training_overhead.py [--quick] [--json FILE] [--device cpu|cuda] [--batch N]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from common import milliseconds, report, training_step  # first: it sets what must stand before torch is imported

import tersify
from tersify.lab import network

ROUNDS = {False: 12, True: 4}


def stepper(recipe: str | None, *, device: str, batch: int, compiled: bool, inflate: int) -> Callable[[], None]:
    """A training step of ResNet-20* with Adam."""
    torch.manual_seed(0)
    attach = (lambda model: tersify.attach(model, recipe, epochs=240, steps_per_epoch=196)) if recipe else None
    adam = partial(torch.optim.Adam, lr=1e-3, fused=device == "cuda")
    model = network("resnet20-star", inflate=inflate)
    return training_step(model, attach, adam, device=device, batch=batch, compiled=compiled)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds of a small network")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=None)
    args = parser.parse_args()
    if args.device == "cpu":
        torch.set_num_threads(1)  # idle threads spin, and their CPU time would count
    batch = args.batch or (256 if args.device == "cuda" else 64)
    # Neighbours share the cores of a CPU, so there its own time counts; a GPU is waited for.
    clock = time.perf_counter if args.device == "cuda" else time.process_time
    repeats = 20 if args.device == "cuda" else 1
    inflate = 1 if args.quick else 5
    figures: dict[str, float] = {}
    print(
        f"ResNet-20* (inflate {inflate}), batch {batch}, {args.device}: one training step, median of interleaved rounds"
    )
    for compiled in (False, True):
        recipes = {"plain": None, "ternary-log": "ternary-log"}
        steps = {
            name: stepper(recipe, device=args.device, batch=batch, compiled=compiled, inflate=inflate)
            for name, recipe in recipes.items()
        }
        for step in steps.values():
            for _ in range(10 if args.device == "cuda" else 3):
                step()
        gc.collect()
        gc.freeze()  # what the compiler left behind is not the steps' garbage
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(ROUNDS[args.quick]):
            for name, step in steps.items():
                times[name].append(milliseconds(step, repeats, clock))
        mode = "compiled" if compiled else "eager"
        medians = {name: statistics.median(values) for name, values in times.items()}
        overhead = 100 * (medians["ternary-log"] / medians["plain"] - 1)
        print(
            f"  {mode:<9} plain {medians['plain']:9.2f} ms   ternary {medians['ternary-log']:9.2f} ms"
            f"   overhead {overhead:+.1f} %"
        )
        figures |= {f"{mode}_{name}_ms": value for name, value in medians.items()} | {
            f"{mode}_overhead_percent": overhead
        }
    gpu = torch.cuda.get_device_name() if args.device == "cuda" else None
    report(
        "training_overhead", figures, json_path=args.json, versions={"torch": torch.__version__}, gpu=gpu, batch=batch
    )


if __name__ == "__main__":
    main()
