"""What a session costs: its training step against the same plain loop, side by side in
one run.

usage: python benchmarks/training_overhead.py [--quick] [--eager-only] [--profile] [--json FILE]
                                              [--device cpu|cuda] [--batch N] [--host-bound-only]

Every round times both loops one after the other, and the overhead is the median of the
rounds' ratios. `--profile` says where it comes from: what the host needs to issue a
step, what the GPU is busy with, and the calls a session adds. Every method is measured
on a small network on the CPU too, where the host is the limit (`--host-bound-only`:
alone).
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

# first: it sets what must stand before torch is imported
from common import interleaved, report, training_step
from host_bound import host_bound
from step_profile import host_milliseconds, print_profile

import tersify
from tersify.lab import network

ROUNDS = {("cuda", False): 40, ("cuda", True): 8, ("cpu", False): 12, ("cpu", True): 4}


RECIPES = ("ternary-log", "ternary-target")


def stepper(
    recipe: str | None, *, device: str, batch: int, compiled: bool, inflate: int
) -> Callable[[], None]:
    """A training step of ResNet-20* with Adam."""
    torch.manual_seed(0)
    attach = (
        (lambda model: tersify.attach(model, recipe, epochs=240, steps_per_epoch=196))
        if recipe
        else None
    )
    adam = partial(torch.optim.Adam, lr=1e-3, fused=device == "cuda")
    model = network("resnet20-star", inflate=inflate)
    return training_step(
        model, attach, adam, device=device, batch=batch, compiled=compiled
    )


def measured(
    mode: str, steps: dict[str, Callable[[], object]], *, device: str, rounds: int
) -> dict[str, float]:
    on_gpu = device == "cuda"
    # Neighbours share the cores of a CPU, so there its own time counts; a GPU is waited
    # for.
    clock = time.perf_counter if on_gpu else time.process_time
    gc.freeze()  # what the last mode left behind is not the steps' garbage
    times = interleaved(
        steps,
        rounds=rounds,
        repeats=20 if on_gpu else 1,
        warm=10 if on_gpu else 3,
        clock=clock,
    )
    medians = {name: statistics.median(values) for name, values in times.items()}
    figures = {f"{mode}_{name}_ms": value for name, value in medians.items()}
    print(f"  {mode:<9} plain {medians['plain']:9.2f} ms", flush=True)
    for recipe in RECIPES:
        overheads = [
            100 * (ours / plain - 1)
            for plain, ours in zip(times["plain"], times[recipe], strict=True)
        ]
        low, overhead, high = statistics.quantiles(overheads, n=4)
        print(
            f"            {recipe} {medians[recipe]:9.2f} ms   overhead {overhead:+.1f} %"
            f"   half of the rounds {low:+.1f} … {high:+.1f} %",
            flush=True,
        )
        name = mode if recipe == RECIPES[0] else f"{mode}_{recipe}"
        figures |= {
            f"{name}_overhead_percent": overhead,
            f"{name}_overhead_percent_low": low,
            f"{name}_overhead_percent_high": high,
        }
    if on_gpu:
        host = host_milliseconds(steps)
        print(
            "            the host alone"
            + "".join(f"   {name} {value:.2f} ms" for name, value in host.items())
        )
        figures |= {f"{mode}_{name}_host_ms": value for name, value in host.items()}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="few rounds of a small network"
    )
    parser.add_argument(
        "--eager-only",
        action="store_true",
        help="no compiled steps, which take minutes to compile",
    )
    parser.add_argument(
        "--profile", action="store_true", help="the calls and kernels a session adds"
    )
    parser.add_argument(
        "--host-bound-only",
        action="store_true",
        help="every method on a small network, no ResNet",
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--batch", type=int, default=None)
    args = parser.parse_args()
    if args.device == "cpu":
        torch.set_num_threads(1)  # idle threads spin, and their CPU time would count
    batch = args.batch or (256 if args.device == "cuda" else 64)
    inflate = 1 if args.quick else 5
    rounds = ROUNDS[args.device, args.quick]
    gpu = torch.cuda.get_device_name() if args.device == "cuda" else None
    figures: dict[str, float] = (
        host_bound(args.quick) if args.device == "cpu" or args.host_bound_only else {}
    )
    keep = partial(
        report,
        "training_overhead",
        json_path=args.json,
        versions={"torch": torch.__version__},
        gpu=gpu,
        batch=batch,
        rounds=rounds,
    )
    keep(figures)
    if args.host_bound_only:
        return
    print(
        f"ResNet-20* (inflate {inflate}), batch {batch}, {args.device}: one training step, {rounds} rounds"
    )
    for mode in ("eager",) if args.eager_only else ("eager", "compiled"):
        steps: dict[str, Callable[[], object]] = {
            name: stepper(
                recipe,
                device=args.device,
                batch=batch,
                compiled=mode == "compiled",
                inflate=inflate,
            )
            for name, recipe in (
                ("plain", None),
                *((recipe, recipe) for recipe in RECIPES),
            )
        }
        figures |= measured(mode, steps, device=args.device, rounds=rounds)
        keep(figures)
        if args.profile:
            print_profile(steps, on_gpu=args.device == "cuda")


if __name__ == "__main__":
    main()
