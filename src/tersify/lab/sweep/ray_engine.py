"""Trials as Ray tasks, on this machine or a cluster. The only file that imports ray."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import warnings
from collections.abc import Iterator
from typing import Any

from tersify.lab.sweep.engines import Done, Judge
from tersify.lab.sweep.sweep_file import Resources
from tersify.lab.sweep.trial import Outcome, Task, run_trial

POLL_SECONDS = 0.2
CONNECT_SECONDS = 5.0


class RayEngine:
    """Each trial is a task with its CPUs and GPUs; a task whose worker died is tried
    again, from its checkpoint.

    Only this process talks to the storage: workers need the sweep's directory, and
    nothing else of it.
    """

    def __init__(self, resources: Resources, address: str | None) -> None:
        self._ray = _connect(address)
        self._resources = resources
        have = self._ray.cluster_resources()
        if have.get("CPU", 0) < resources.cpus or have.get("GPU", 0) < resources.gpus:
            self._ray.shutdown()
            raise ValueError(
                f"a trial asks for {resources.cpus} CPUs and {resources.gpus:g} GPUs, and the Ray cluster has "
                f"{have.get('CPU', 0):g} and {have.get('GPU', 0):g}; lower [resources], or name another --address"
            )
        fitting = [have["CPU"] // resources.cpus]
        fitting += [have["GPU"] // resources.gpus] if resources.gpus else []
        self.workers = resources.workers or max(1, int(min(fitting)))

    def run(self, tasks: Iterator[Task], judge: Judge | None, done: Done) -> None:
        ray, wants = self._ray, self._resources
        mailbox = None if judge is None else ray.remote(num_cpus=0)(_Mailbox).remote()
        remote = ray.remote(_run).options(
            num_cpus=wants.cpus,
            num_gpus=wants.gpus,
            max_retries=wants.retries,
            # An exception is the trial's own and would come again; only a dead worker
            # is retried.
            retry_exceptions=False,
        )
        running: dict[Any, int] = {}
        exhausted = False
        try:
            while running or not exhausted:
                # Drawn only when there is room: a sampler that learns must see earlier
                # results.
                while not exhausted and len(running) < self.workers:
                    task = next(tasks, None)
                    exhausted = task is None
                    if task is not None:
                        running[remote.remote(task, mailbox)] = task.number
                ready, _ = (
                    ray.wait(list(running), timeout=POLL_SECONDS)
                    if running
                    else ([], None)
                )
                if mailbox is not None and judge is not None:
                    for number, epoch, value in ray.get(mailbox.take.remote()):
                        mailbox.answer.remote(
                            number, epoch, judge(number, epoch, value)
                        )
                for reference in ready:
                    done(running.pop(reference), self._outcome(reference))
        finally:
            ray.shutdown()

    def _outcome(self, reference: Any) -> Outcome:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            why = str(error).strip().partition("\n")[0]
            times = f"{self._resources.retries} retries"
            return Outcome(
                state="failed",
                reason=f"its worker died, also after {times} ({type(error).__name__}: {why})",
            )


def _run(task: Task, mailbox: Any) -> Outcome:
    """In a worker."""
    if mailbox is None:
        return run_trial(task)
    import ray

    return run_trial(
        task,
        lambda epoch, value: ray.get(mailbox.report.remote(task.number, epoch, value)),
    )


class _Mailbox:
    """An actor between the workers, which wait for the pruner's word, and the process
    that has the pruner.
    """

    def __init__(self) -> None:
        self._letters: list[tuple[int, int, float]] = []
        self._answers: dict[tuple[int, int], asyncio.Future[bool]] = {}

    async def report(self, number: int, epoch: int, value: float) -> bool:
        answer = asyncio.get_running_loop().create_future()
        self._answers[number, epoch] = answer
        self._letters.append((number, epoch, value))
        return await answer

    async def take(self) -> list[tuple[int, int, float]]:
        letters, self._letters = self._letters, []
        return letters

    async def answer(self, number: int, epoch: int, stop: bool) -> None:
        waiting = self._answers.pop((number, epoch), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(stop)


def _connect(address: str | None) -> Any:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise ValueError(
            "--engine ray needs Ray, which is not installed; pip install 'tersify[sweep]', or leave --engine out"
        ) from None
    try:
        _check_address(address)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(
                address=address or "local",
                include_dashboard=False if address is None else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    except Exception as error:
        # Ray raises many kinds for a cluster that does not answer
        why = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"no Ray cluster answers at {address or 'this machine'} ({type(error).__name__}: {why}); start one with "
            "`ray start --head`, or leave --address out"
        ) from None
    return ray


def _check_address(address: str | None) -> None:
    """Raises at once where nobody listens; Ray itself would try for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
