"""A compressed run and its dense twin: the same network without compression, beside which a loss is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tersify import ranks
from tersify.lab.data import Data
from tersify.lab.trainer.directory import TWIN, RunDirectory
from tersify.lab.trainer.display import Display
from tersify.lab.trainer.fitting import DENSE, fitted
from tersify.lab.trainer.job import Job

# What the dense twin has in common with the compressed run that starts from it; the rest is how to train.
_SHARED = (
    "epochs", "batch_size", "freeze", "augment", "augmentation", "amp", "channels_last", "compile", "ema",
    "recalibrate", "seed", "device", "parallel",
)  # fmt: skip


def dense_twin(job: Job, samples: int) -> Job:
    """The same network, data and settings without compression.

    Where the compressed run will start from it, it is trained from scratch as any dense network.
    """
    if job.recipe is None or job.recipe.start == "scratch" or job.weights is not None:
        return replace(job, recipe=None)
    shared = {key: getattr(job.config, key) for key in _SHARED}
    return replace(job, recipe=None, config=fitted(DENSE, samples, **shared))


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
) -> dict[str, dict[str, float]]:
    """Train the twin into `out/dense-twin`, then the job into `out`; the metrics of both, by "dense twin" and `label`.

    A recipe that starts from a trained network starts from the twin where the job names no weights. Else the
    twin is there for comparison, and only where it is `wanted`.
    """
    ranks.first(lambda: RunDirectory(out).check_usable(resume=resume))
    rows: dict[str, dict[str, float]] = {}
    starts_there = job.recipe is not None and job.recipe.start == "trained" and job.weights is None
    if job.recipe is not None and (wanted or starts_there):
        job.check(data)
        twin = dense_twin(job, len(data.train))
        rows["dense twin"] = twin.run(out / TWIN, resume=resume, display=display("dense twin"), data=data)
    if starts_there:
        job = replace(job, weights=RunDirectory(out / TWIN).model)
    metrics = job.run(out, resume=resume, display=display(label), tensorboard=tensorboard, data=data)
    if rows:
        metrics["dense_accuracy"] = rows["dense twin"]["accuracy"]
        ranks.first(lambda: RunDirectory(out).write_metrics(metrics))
    return rows | {label: metrics}
