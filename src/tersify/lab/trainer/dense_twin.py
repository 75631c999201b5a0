"""A compressed run and its dense twin: the same network without compression, beside
which a loss is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from tersify import ranks
from tersify.lab.data import Data
from tersify.lab.trainer.display import Display
from tersify.lab.trainer.evaluation import evaluate
from tersify.lab.trainer.fitting import DENSE, fitted
from tersify.lab.trainer.job import Job
from tersify.lab.trainer.run_directory import START, TWIN, RunDirectory

SAMPLE = 1000  # images that tell whether a network is trained
# What the dense twin has in common with the compressed run that starts from it; the
# rest is how to train.
_SHARED = (
    "epochs",
    "batch_size",
    "freeze",
    "augment",
    "augmentation",
    "amp",
    "channels_last",
    "compile",
    "ema",
    "recalibrate",
    "seed",
    "device",
    "parallel",
)


def starts_from_twin(job: Job, data: Data) -> bool:
    """Whether the recipe wants a trained network, and neither the job's weights nor its
    target are one already.
    """
    if job.recipe is None or job.recipe.start == "scratch" or job.weights is not None:
        return False
    return not (job.target.startswith("hf:") or _is_trained(job, data))


def _is_trained(job: Job, data: Data) -> bool:
    """Whether the network, as its target gives it, is nearer to all images of a sample
    than to chance.
    """
    seen = data.train[
        torch.linspace(0, len(data.train) - 1, min(len(data.train), SAMPLE)).long()
    ]
    accuracy = evaluate(
        job.network(data), data, seen, device=torch.device("cpu"), amp=False
    )["accuracy"]
    # Half way between chance, 100/classes percent, and 100 percent.
    return accuracy > 50.0 * (1.0 + 1.0 / data.classes)


def dense_twin(job: Job, data: Data) -> Job:
    """The same network, data and settings without compression.

    Where the compressed run will start from it, it is trained from scratch as any dense
    network.
    """
    if not starts_from_twin(job, data):
        return replace(job, recipe=None)
    shared = {key: getattr(job.config, key) for key in _SHARED}
    return replace(job, recipe=None, config=fitted(DENSE, data.train.samples, **shared))


def run_with_twin(
    job: Job,
    out: Path,
    *,
    data: Data,
    label: str,
    wanted: bool = True,
    resume: bool = False,
    display: Callable[[str], Display] = lambda label: Display(),
    tensorboard: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, dict[str, float]]:
    """Train the twin into `out/dense-twin`, then the job into `out`; the metrics of
    both, by "dense twin" and `label`.

    A recipe that wants a trained network starts from the twin, unless the job has one
    already. Where no twin is `wanted`, such a recipe still needs its start: `tell` is
    given one sentence, it is trained into `out/dense-start`, and its metrics are left
    out.
    """
    ranks.first(lambda: RunDirectory(out).check_usable(resume=resume))
    if job.recipe is not None:
        # A mistake in the compressed job must not show after the twin has trained for
        # hours.
        job.check(data)
    starts_there = starts_from_twin(job, data)
    name, folder = ("dense twin", TWIN) if wanted else ("dense start", START)
    if starts_there and not wanted:
        tell(
            f"{label} starts from a trained network, so a dense one is trained first, into {out / folder}; "
            "--weights FILE starts from one that you have"
        )
    rows: dict[str, dict[str, float]] = {}
    if job.recipe is not None and (wanted or starts_there):
        dense = dense_twin(job, data).run(
            out / folder, resume=resume, display=display(name), data=data
        )
        rows = {name: dense} if wanted else {}
    if starts_there:
        job = replace(job, weights=RunDirectory(out / folder).model)
    metrics = job.run(
        out, resume=resume, display=display(label), tensorboard=tensorboard, data=data
    )
    if rows:
        metrics["dense_accuracy"] = rows[name]["accuracy"]
        ranks.first(lambda: RunDirectory(out).write_metrics(metrics))
    return rows | {label: metrics}
