"""`sweep`: run the trials that are missing, keep the journal, and write what is known
after each of them.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tersify.codec.atomic import write_text
from tersify.lab.experiments.provenance import provenance
from tersify.lab.sweep.engines import Engine, InProcess
from tersify.lab.sweep.fields import meant_for
from tersify.lab.sweep.sweep_file import OBJECTIVES, Sweep
from tersify.lab.sweep.trial import Outcome, Task
from tersify.lab.targets import resolve_target
from tersify.lab.trainer import Job, TrainConfig, check_fits
from tersify.lab.trainer.run_directory import difference
from tersify.locks import LOCK, alone, check_unlocked

ENGINES = ("local", "ray")
RESULTS = "sweep.json"
IDENTITY = "identity.json"
# networks that are built before the first trial, in search of one that can be
MOST_ATTEMPTS = 16


class SweepDisplay:
    """Shows nothing; the base of what a person sees."""

    def begin(self, results: Mapping[str, Any]) -> None:
        """What is known before the first trial, from an earlier start."""

    def trial_done(self, results: Mapping[str, Any], number: int) -> None: ...


def sweep(
    chosen: Sweep,
    out: Path,
    *,
    resume: bool = False,
    storage: str | None = None,
    engine: str = "local",
    address: str | None = None,
    data_root: Path | None = None,
    display: SweepDisplay | None = None,
) -> dict[str, Any]:
    """Run `chosen` into `out`; killed at any moment and called again with `resume=True`
    it repeats no finished trial.

    The results, also in `out/sweep.json` after each trial, hold every trial with its
    parameters and figures, the front, and how important each parameter is. The trials'
    run directories lie in `out/trials`.
    """
    display = display or SweepDisplay()
    _check_engine(engine, address)
    if out.exists() and not out.is_dir():
        raise ValueError(
            f"{out} is a file; the output must be a directory: give another --out"
        )
    check_unlocked(out)
    if not resume and not _is_fresh(out):
        raise ValueError(
            f"{out} is not empty; add --resume to go on with the sweep in it, or give another --out"
        )
    from tersify.lab.sweep.study import Study

    if address is None:  # a cluster's workers may have data and files that are not here
        _check_start(chosen, data_root)
    runner = _engine(chosen, engine, address)
    with alone(out):  # so that what the journal calls running is known to be dead
        _check_same_sweep(out, chosen)
        study = Study(chosen, out, storage)
        results = _write(out, chosen, study, engine)
        display.begin(results)

        def done(number: int, outcome: Outcome) -> None:
            study.tell(number, outcome)
            display.trial_done(_write(out, chosen, study, engine), number)

        judge = None if chosen.pruner == "none" else study.judge
        runner.run(_tasks(chosen, study, out, data_root), judge, done)
        return _write(out, chosen, study, engine, importance=True)


def check_any_complete(results: Mapping[str, Any]) -> None:
    """A sweep that found nothing is a mistake of somebody, and a script must see it."""
    trials = results["trials"]
    if trials and all(trial["state"] == "failed" for trial in trials):
        raise ValueError(
            f"all {len(trials)} trials failed, the first with {trials[0]['reason']}"
        )


def _tasks(
    chosen: Sweep, study: Any, out: Path, data_root: Path | None
) -> Iterator[Task]:
    """First what was interrupted, then new trials, each drawn only when there is room
    to run it.
    """

    def task(number: int, values: Mapping[str, Any]) -> Task | None:
        try:
            job = chosen.job(values)
        except ValueError as error:  # values that do not go together
            study.tell(number, Outcome(state="failed", reason=str(error)))
            return None
        return Task(
            number=number,
            job=replace(job, data_root=data_root),
            out=(out / "trials" / f"{number:04d}").resolve(),
            objectives=chosen.objectives,
            threads=chosen.resources.cpus,
        )

    for number in study.interrupted():
        found = task(number, study.again(number))
        if found is not None:
            yield found
    while study.count < chosen.count:
        found = task(*study.ask())
        if found is not None:
            yield found


def _check_start(chosen: Sweep, data_root: Path | None) -> None:
    """The data are there and some network of the space takes them, or every trial would
    fail for one reason.
    """
    varied = [p for p in chosen.space if p.field.startswith("options.")]
    plain = Job(
        target=chosen.target,
        data=chosen.data,
        config=TrainConfig(epochs=1),
        data_root=data_root,
    )
    data = plain.load_data()
    problems: list[ValueError] = []
    for values in itertools.islice(
        itertools.product(*(p.ends() for p in varied)), MOST_ATTEMPTS
    ):
        drawn = meant_for(
            "options", dict(zip((p.field for p in varied), values, strict=True))
        )
        job = replace(plain, options={**chosen.options, **drawn})
        try:
            check_fits(resolve_target(job.target, **job.network_options(data)), data)
        except ValueError as error:
            problems.append(error)
        else:
            return
    # Only if all combinations were tried; beyond MOST_ATTEMPTS some network may still
    # fit.
    if len(problems) == math.prod(len(p.ends()) for p in varied):
        raise problems[0]


def _is_fresh(out: Path) -> bool:
    """Nothing is there, or only what a start leaves that never got as far as a trial."""
    kept = {path.name for path in out.iterdir()} if out.exists() else set()
    return kept <= {LOCK, IDENTITY, "study.db", "study.db-journal"}


def _check_engine(engine: str, address: str | None) -> None:
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if address is not None and engine != "ray":
        raise ValueError(f"--address {address} names a Ray cluster; add --engine ray")


def _engine(chosen: Sweep, engine: str, address: str | None) -> Engine:
    if engine == "local":
        return InProcess()
    from tersify.lab.sweep.ray_engine import RayEngine

    return RayEngine(chosen.resources, address)


def _check_same_sweep(out: Path, chosen: Sweep) -> None:
    path = out / IDENTITY
    identity = json.loads(json.dumps(chosen.identity()))
    if path.is_file():
        changed = difference(json.loads(path.read_bytes()), identity)
        if changed:
            raise ValueError(
                f"{out} holds another sweep: {changed}; resume with the same file, or give another --out"
            )
        return
    write_text(path, json.dumps(identity, indent=2))


def _write(
    out: Path, chosen: Sweep, study: Any, engine: str, *, importance: bool = False
) -> dict[str, Any]:
    results = {
        "name": chosen.name,
        "title": chosen.title,
        "target": chosen.target,
        "data": chosen.data,
        "wanted": chosen.count,
        "sampler": chosen.sampler,
        "pruner": chosen.pruner,
        "seed": chosen.seed,
        "engine": engine,
        "objectives": [
            {"name": name, "direction": OBJECTIVES[name]} for name in chosen.objectives
        ],
        "space": {p.field: p.to_dict() for p in chosen.space},
        "trials": study.trials(),
        "front": study.front(),
    }
    if importance:
        results |= {"importance": study.importance(), **provenance()}
    write_text(out / RESULTS, json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    return results
