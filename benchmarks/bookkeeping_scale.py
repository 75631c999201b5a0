"""What a method's bookkeeping costs as the network grows: one session step without any
training, 16 M to 1 B weights.

usage: python benchmarks/bookkeeping_scale.py [--quick] [--json FILE] [--most-layers N]

The network is a stack of 4096×4096 linear layers. Times are CPU seconds of this process
on one thread, the least of some rounds; the state is everything the session keeps
beside the latents. 1 B weights take about 7 GB.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from common import report  # first: it sets what must stand before torch is imported
from torch import Tensor, nn

import tersify
from tersify import Recipe, Rule
from tersify.methods import Method, Prune, Ternary

WIDTH = 4096
LAYERS = (1, 4, 16, 60)
# of the cheap step; of the dear one half as many
ROUNDS = {1: 40, 4: 20, 16: 10, 60: 6}
METHODS: dict[str, Method] = {
    "ternary": Ternary(regime="log"),
    "magnitude": Prune(sparsity=0.9, end=1.0),
}
EVICTING = torch.zeros(1 << 26)
STEPS = 1000  # of the run that the schedules belong to


def network(latents: list[Tensor]) -> nn.Module:
    """Linear layers around memory that is already there."""
    layers = [nn.Linear(1, 1, bias=False) for _ in latents]
    for layer, latent in zip(layers, latents, strict=True):
        layer.weight = nn.Parameter(latent)
    return nn.Sequential(*layers)


def measure(method: Method, latents: list[Tensor], rounds: int) -> tuple[float, float]:
    """CPU nanoseconds a weight and step, and bytes of state a weight."""
    weights = sum(latent.numel() for latent in latents)
    model = network(latents)
    session = tersify.attach(
        model, Recipe(rules=(Rule(methods=(method,)),)), epochs=1, steps_per_epoch=STEPS
    )
    held = {id(site.latent) for site in session.sites}
    kept = {
        id(t): t for t in model.state_dict(keep_vars=True).values() if id(t) not in held
    }
    state = sum(tensor.numel() * tensor.element_size() for tensor in kept.values())
    session.step()
    times = []
    for _ in range(rounds):
        # a training step would have driven the latents out of the cache, too
        EVICTING.add_(1.0)
        start = time.process_time()
        session.step()
        times.append(time.process_time() - start)
    return 1e9 * min(times) / weights, state / weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="up to 67 M weights only")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--most-layers", type=int, default=LAYERS[-1])
    args = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [
        count for count in LAYERS if count <= (4 if args.quick else args.most_layers)
    ]
    figures: dict[str, float] = {}
    print(f"{'weights':>14}  " + "".join(f"{name:>26}" for name in METHODS))
    for count in sizes:
        generator = torch.Generator().manual_seed(0)
        latents = [
            torch.empty(WIDTH, WIDTH).normal_(0.0, 0.2, generator=generator)
            for _ in range(count)
        ]
        weights = count * WIDTH * WIDTH
        line = f"{weights:>14,}  "
        for name, method in METHODS.items():
            nanoseconds, state = measure(
                method, latents, rounds=ROUNDS[count] // (1 if name == "ternary" else 2)
            )
            line += f"{nanoseconds:10.3f} ns {state:8.6f} B  "
            figures |= {
                f"{name}_{count}_ns_per_weight": nanoseconds,
                f"{name}_{count}_state_bytes_per_weight": state,
            }
        print(line, flush=True)
        del latents
    for name in METHODS:
        times = [figures[f"{name}_{count}_ns_per_weight"] for count in sizes]
        figures[f"{name}_unevenness_percent"] = 100 * (max(times) / min(times) - 1)
        print(
            f"{name}: from the fastest to the slowest size {figures[f'{name}_unevenness_percent']:.1f} %"
        )
    report(
        "bookkeeping_scale",
        figures,
        json_path=args.json,
        versions={"torch": torch.__version__},
    )


if __name__ == "__main__":
    main()
