"""What a session of each method costs where the host is the limit: 41 layers with next
to no arithmetic.

Times say what a user waits for; the calls that a step adds say the same on a machine
with neighbours.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from common import interleaved
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import tersify
from tersify import Recipe, Rule
from tersify.methods import Method, from_table, registered

LAYERS, WIDTH, BATCH = 41, 16, 16
# A search's own passes are its work, and clusters that are not formed yet cost nothing:
# both are taken as they are in most of a training.
SETTINGS = {"energy": {"stagnation": 1e-6}, "kmeans": {"begin": 0.0}}
ROUNDS = {False: 30, True: 6}


def every_method() -> dict[str, Method]:
    return {
        name: from_table({"method": name, **SETTINGS.get(name, {})})
        for name in registered()
    }


def step_of(method: Method | None) -> Callable[[], None]:
    """A training step with Adam, as it comes, of linear layers with batch norms."""
    torch.manual_seed(0)
    blocks = [
        (nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
        for _ in range(LAYERS)
    ]
    model = nn.Sequential(
        *[layer for block in blocks for layer in block], nn.Linear(WIDTH, 10)
    )
    x, labels = torch.randn(BATCH, WIDTH), torch.arange(BATCH) % 10
    session = None
    if method is not None:
        linear = [f"{index}.weight" for index in range(0, 3 * LAYERS, 3)]
        recipe = Recipe(rules=[Rule(weights=linear, methods=[method])])
        session = tersify.attach(model, recipe, epochs=240, steps_per_epoch=196)
    optimizer = torch.optim.Adam(
        session.param_groups() if session else model.parameters(), lr=1e-3
    )

    def step() -> None:
        if session:
            session.step(x, labels)
        loss = nn.functional.cross_entropy(model(x), labels)
        if session:
            loss = loss + session.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


class _Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.calls += 1
        return func(*args, **(kwargs or {}))


def calls_of(step: Callable[[], None]) -> int:
    with _Counted() as counted:
        step()
    return counted.calls


def host_bound(quick: bool) -> dict[str, float]:
    """The factor of each method's step over the plain one, and the calls it adds;
    printed and returned.
    """
    print(
        f"host-bound network: {LAYERS} linear layers of {WIDTH}, batch norms, Adam, CPU: a step over the plain one"
    )
    plain = step_of(None)
    figures: dict[str, float] = {
        "host_bound_layers": LAYERS,
        "host_bound_width": WIDTH,
        "host_bound_batch": BATCH,
        "host_bound_rounds": ROUNDS[quick],
    }
    for name, method in every_method().items():
        steps = {"plain": plain, name: step_of(method)}
        times = interleaved(
            steps, rounds=ROUNDS[quick], repeats=5, warm=5, clock=time.process_time
        )
        ratio = statistics.median(
            ours / base for base, ours in zip(*times.values(), strict=True)
        )
        added = calls_of(steps[name]) - calls_of(plain)
        print(f"  {name:<16} ×{ratio:.2f}   {added:+5d} calls a step", flush=True)
        figures |= {
            f"host_bound_{name}_factor": ratio,
            f"host_bound_{name}_calls_added": added,
        }
    return figures
