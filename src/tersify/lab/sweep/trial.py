"""One trial: a training run with its own directory, and the figures that were asked of
it.
"""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import tersify
from tersify.lab.data import normalize
from tersify.lab.trainer import Display, Job, RunDirectory, load_network

LATENCY_ROUNDS = 30
Report = Callable[[int, float], bool]  # epoch and value; whether the trial should stop


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a worker needs to know: nothing in it belongs to Optuna or Ray."""

    number: int
    job: Job
    out: Path
    objectives: tuple[str, ...]
    threads: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`state` is complete, pruned or failed; a failed one has its reason."""

    state: str
    values: tuple[float, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


class Pruned(Exception):  # noqa: N818 (it is no error)
    """The pruner stopped the trial."""


def run_trial(task: Task, report: Report | None = None) -> Outcome:
    """Train, or go on where a dead process stopped; whatever goes wrong becomes the
    trial's reason.
    """
    threads = torch.get_num_threads()
    # so that figures do not depend on who runs the trial
    torch.set_num_threads(task.threads)
    directory = RunDirectory(task.out)
    if task.out.is_dir() and not directory.identity.is_file():
        # killed before it had a name: nothing in it is worth keeping
        shutil.rmtree(task.out)
    try:
        metrics = dict(
            task.job.run(
                task.out, resume=True, display=_Reporting(task.objectives[0], report)
            )
        )
        if "latency_ms" in task.objectives:
            metrics["latency_ms"] = latency_ms(task.job, directory.model)
        return Outcome(
            state="complete", values=figures(metrics, task.objectives), metrics=metrics
        )
    except Pruned:
        return Outcome(state="pruned")
    except Exception as error:
        # anybody's network: the sweep goes on, whatever it raised
        why = " ".join(str(error).split()) or "no message"
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        return Outcome(state="failed", reason=f"{kind}{why}"[:1000])
    finally:
        torch.set_num_threads(threads)


def figures(
    metrics: Mapping[str, float], objectives: Sequence[str]
) -> tuple[float, ...]:
    for name in objectives:
        if name not in metrics:
            raise ValueError(
                f"the run has no figure {name!r}, which is an objective; a dense network has no sparsity"
            )
        if not math.isfinite(metrics[name]):
            raise ValueError(f"{name} is {metrics[name]}, which no front can hold")
    return tuple(float(metrics[name]) for name in objectives)


def latency_ms(job: Job, model: Path) -> float:
    """The median time of one image through the compiled file, on this machine's CPU."""
    data = job.load_data()
    example = normalize(data.test.images[:1], data)
    network = load_network(model, target=job.target, options=job.network_options(data))
    compiled: Any = tersify.compile(network, example)
    times = []
    with torch.no_grad():
        # Five calls to warm up, which are left out below.
        for _ in range(LATENCY_ROUNDS + 5):
            start = time.perf_counter()
            compiled(example)
            times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[5:])


class _Reporting(Display):
    """Tells the pruner each epoch's figure."""

    def __init__(self, objective: str, report: Report | None) -> None:
        self._objective, self._report = objective, report

    def epoch_done(self, row: Mapping[str, Any]) -> None:
        value = row.get(self._objective)
        if (
            self._report is not None
            and value is not None
            and self._report(int(row["epoch"]), float(value))
        ):
            raise Pruned
