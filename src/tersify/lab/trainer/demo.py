"""The demo's settings: sparse ternary digits that keep the dense twin's accuracy, in a
minute on two cores.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from tersify.lab.trainer.config import TrainConfig
from tersify.lab.trainer.display import Display
from tersify.lab.trainer.job import Job
from tersify.recipe import Recipe

# The log regime of paper 1. Its cap of 0.97 belongs to 240 epochs of 196 batches, in
# which the latents spread further than in the demo's 60 epochs of 43; with 0.7 the
# threshold stops where it still leaves enough of them.
_RECIPE = """
description = "The demo: sparse ternary digits, threshold growing with the natural log of the epoch"

[[rules]]
weights = "*"
methods = [{ method = "ternary", regime = "log", delta0 = 0.1, speed = 1.9, cap = 0.7, floor = 0.0 }]

[train]
optimizer = "adam"
lr = 0.01
schedule = "cosine"
batch_size = 32
"""


def run_demo(
    home: Path,
    *,
    seed: int = 0,
    quick: bool = False,
    resume: bool = False,
    display: Callable[[str], Display] = lambda label: Display(),
) -> dict[str, dict[str, float]]:
    """Train both networks into `home/dense` and `home/ternary-log`; the metrics of each
    by its name.
    """
    job = demo_job(seed=seed, quick=quick)
    jobs = {
        "dense twin": (home / "dense", replace(job, recipe=None)),
        "ternary-log": (home / "ternary-log", job),
    }
    with _one_thread():
        return {
            name: j.run(out, resume=resume, display=display(name))
            for name, (out, j) in jobs.items()
        }


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Batches this small gain little from a second thread, and lose much where cores
    are shared.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def demo_job(*, seed: int = 0, quick: bool = False) -> Job:
    recipe = Recipe.from_toml(_RECIPE)
    config = TrainConfig.from_mapping(
        recipe.train, epochs=3 if quick else 60, seed=seed, device="cpu"
    )
    return Job(target="digits-cnn", data="digits", config=config, recipe=recipe)
