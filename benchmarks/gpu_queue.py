"""Rows of the papers' experiments as processes side by side on one GPU, for as many
minutes as there are.

    python benchmarks/gpu_queue.py benchmarks/queues/papers.txt --out runs/queue --abreast 13 --minutes 9

Each line of the queue is `EXPERIMENT ROW SEED,SEED… [validate] [compile=MODE]`; `#`
starts a comment. A row that uses another row's network waits for it, and the first
lines go first. The file is read again and again, so lines that are added later are run
too. What was begun is resumed, what is finished stays. In the end `--bring DIR` gets

    queue.json         what is finished, with its figures, and how far the others are
    finished.tar.gz    run directories of finished runs, as results/collect.py reads them
    unfinished.tar.NN  states of the runs that are furthest, in parts, as far as `--bring-mib` allows

`--restore DIR` puts back what an earlier call brought, so that another machine goes on
with it.

The parent imports torch once and forks; it never touches the GPU while it has children.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import os
import signal
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# Before torch: each process compiles by itself, or every one of them would start a pool
# of compilers.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch

from tersify.lab.experiments import Experiment
from tersify.lab.experiments.experiment_file import run_path
from tersify.lab.experiments.provenance import provenance
from tersify.lab.trainer import RunDirectory

PART_MIB = 15
KEPT_MODEL_MIB = 1.5
POLL_SECONDS = 1.0
REPORT_SECONDS = 30.0
CHECKPOINT_SECONDS = 45.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """One row with one seed."""

    experiment: str
    row: str
    seed: int
    validate: bool = False
    compile: str = "default"

    @property
    def name(self) -> str:
        return f"{self.experiment}{'-validation' if self.validate else ''}/{self.row}/seed-{self.seed}"

    def home(self, out: Path) -> Path:
        return out / f"{self.experiment}{'-validation' if self.validate else ''}"

    def path(self, out: Path) -> Path:
        return run_path(self.home(out), self.row, self.seed)

    def is_done(self, out: Path) -> bool:
        return RunDirectory(self.path(out)).metrics.is_file()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("queue", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/queue"))
    parser.add_argument("--abreast", type=int, default=13)
    parser.add_argument(
        "--minutes",
        type=float,
        default=9.0,
        help="start nothing and stop everything after these",
    )
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--bring", type=Path, help="where the results go")
    parser.add_argument("--bring-mib", type=int, default=50)
    parser.add_argument(
        "--bring-only",
        action="store_true",
        help="bring what there is, while another process works",
    )
    parser.add_argument(
        "--restore",
        type=Path,
        help="a folder with the unfinished.tar.NN of an earlier call",
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="each row as its experiment's smoke run, on the CPU",
    )
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.restore:
        restore(given.restore, given.out)
    deadline = time.monotonic() + 60 * given.minutes
    failed = []
    try:
        failed = [] if given.bring_only else work(given, deadline)
    finally:
        if given.bring:
            bring(read_queue(given.queue, given.smoke), given)
    sys.exit(1 if failed else 0)


def read_queue(file: Path, smoke: bool = False) -> list[Run]:
    """Every run of the file; of each line the first seed alone for a smoke run."""
    runs = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            experiment, row, seeds, *rest = words
            extra: dict[str, Any] = {}
            for word in rest:
                key, _, value = word.partition("=")
                extra |= {key: value} if value else {key: True}
            wanted = seeds.split(",")[: 1 if smoke else None]
            runs += [
                Run(experiment=experiment, row=row, seed=int(seed), **extra)
                for seed in wanted
            ]
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"line {number} of {file} must be EXPERIMENT ROW SEED,SEED… [validate] [compile=MODE], got {line!r}"
            ) from error
    return runs


def work(given: argparse.Namespace, deadline: float) -> list[str]:
    """Runs the queue until it is empty or the time is over; the names of the runs that
    failed.
    """
    live: dict[int, Run] = {}
    failed: dict[str, int] = {}
    reported = 0.0
    while time.monotonic() < deadline:
        for pid, code in reaped(live):
            run = live.pop(pid)
            if code:
                failed[run.name] = code
                print(
                    f"FAILED {run.name}, status {code}:",
                    log_tail(run.path(given.out)),
                    flush=True,
                )
        waiting = [
            run
            for run in read_queue(given.queue, given.smoke)
            if not run.is_done(given.out)
            and run not in live.values()
            and run.name not in failed
        ]
        ready = [
            run
            for run in waiting
            if all(
                model_of(need, given.out).is_file() for need in needs(run, given.smoke)
            )
        ]
        for run in ready[: given.abreast - len(live)]:
            live[start(run, given)] = run
        if not live:
            break
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            print(
                f"-- {deadline - reported:.0f} s left, {len(live)} running, {len(waiting)} waiting",
                flush=True,
            )
            for run in live.values():
                print(f"   {run.name}: {progress(run.path(given.out))}", flush=True)
        time.sleep(POLL_SECONDS)
    for pid in live:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return list(failed)


def needs(run: Run, smoke: bool) -> list[Run]:
    rows = {row.id: row for row in load(run, smoke).rows}
    return [replace(run, row=other) for other in rows[run.row].needs]


def model_of(run: Run, out: Path) -> Path:
    """Written before the metrics; of a large network that was finished elsewhere only
    these are here.
    """
    return RunDirectory(run.path(out)).model


@functools.cache
def load(run: Run, smoke: bool) -> Experiment:
    experiment = Experiment.load(run.experiment)
    return replace(
        experiment.as_smoke() if smoke else experiment, validate=run.validate
    )


def start(run: Run, given: argparse.Namespace) -> int:
    """A forked process that trains the run; its output goes to log.txt beside the run
    directory.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        log = log_file(run.path(given.out))
        log.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        torch.set_num_threads(1)
        train(run, given)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def train(run: Run, given: argparse.Namespace) -> None:
    experiment = load(run, given.smoke)
    row = next(row for row in experiment.rows if row.id == run.row)
    overrides = {"device": "cpu"} if given.smoke else {"compile": run.compile}
    job = experiment.job(row, run.seed, run.home(given.out), **overrides)
    job = replace(job, data_root=given.data_root)
    job.run(run.path(given.out), resume=True, checkpoint_seconds=CHECKPOINT_SECONDS)


def reaped(live: dict[int, Run]) -> Iterator[tuple[int, int]]:
    for pid in list(live):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            yield pid, os.waitstatus_to_exitcode(status)


def log_file(path: Path) -> Path:
    return path.with_suffix(".log")


def log_tail(path: Path) -> str:
    file = log_file(path)
    return file.read_text(errors="replace")[-1500:] if file.is_file() else "no log"


def history(path: Path) -> list[dict[str, Any]]:
    file = RunDirectory(path).history
    if not file.is_file():
        return []
    lines = file.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def progress(path: Path) -> str:
    rows = history(path)
    if not rows:
        return "starting"
    last = rows[-1]
    shown = [
        f"epoch {last['epoch']}",
        f"{last['accuracy']:.2f} %",
        f"{last['seconds']:.1f} s",
    ]
    shown += [f"{last[key]:.2f} % zeros" for key in ("sparsity",) if key in last]
    return ", ".join(shown)


def bring(runs: list[Run], given: argparse.Namespace) -> None:
    """Everything worth keeping, in few files of bounded size."""
    given.bring.mkdir(parents=True, exist_ok=True)
    done = [run for run in runs if run.is_done(given.out)]
    report = {
        **provenance(),
        "abreast": given.abreast,
        "finished": {
            r.name: json.loads(RunDirectory(r.path(given.out)).metrics.read_bytes())
            for r in done
        },
        "unfinished": {
            r.name: progress(r.path(given.out)) for r in runs if r not in done
        },
    }
    (given.bring / "queue.json").write_text(
        json.dumps(report, indent=1) + "\n", encoding="utf-8"
    )
    with tarfile.open(given.bring / "finished.tar.gz", "w:gz") as tar:
        for run in done:
            here = RunDirectory(run.path(given.out))
            for file in (
                here.metrics,
                here.history,
                here.recipe,
                here.latents,
                here.identity,
                here.model,
            ):
                if file.is_file() and file.stat().st_size <= KEPT_MODEL_MIB * 2**20:
                    tar.add(file, file.relative_to(given.out))
    begun = [
        run
        for run in runs
        if run not in done and RunDirectory(run.path(given.out)).checkpoint.is_file()
    ]
    states = io.BytesIO()
    room = given.bring_mib * 2**20
    with tarfile.open(fileobj=states, mode="w") as tar:
        for run in sorted(begun, key=lambda run: -len(history(run.path(given.out)))):
            here = RunDirectory(run.path(given.out))
            size = here.checkpoint.stat().st_size + 2**16
            if size <= room:
                room -= size
                for file in (here.checkpoint, here.identity):
                    tar.add(file, file.relative_to(given.out))
    data = states.getvalue()
    for number, at in enumerate(range(0, len(data), PART_MIB * 2**20) if begun else ()):
        (given.bring / f"unfinished.tar.{number:02d}").write_bytes(
            data[at : at + PART_MIB * 2**20]
        )


def restore(folder: Path, out: Path) -> None:
    parts = sorted(folder.glob("unfinished.tar.*"))
    if parts:
        with tarfile.open(
            fileobj=io.BytesIO(b"".join(part.read_bytes() for part in parts))
        ) as tar:
            tar.extractall(out, filter="data")
    finished = folder / "finished.tar.gz"
    if finished.is_file():
        with tarfile.open(finished) as tar:
            tar.extractall(out, filter="data")


if __name__ == "__main__":
    main()
