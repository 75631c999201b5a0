"""Who runs the trials: this process, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from tersify.lab.sweep.trial import Outcome, Task, run_trial

Judge = Callable[[int, int, float], bool]  # trial, epoch, value; whether it should stop
Done = Callable[[int, Outcome], None]


class Engine(Protocol):
    """Takes a task whenever it has room for one, and tells how each ended."""

    def run(self, tasks: Iterator[Task], judge: Judge | None, done: Done) -> None: ...


class InProcess:
    def run(self, tasks: Iterator[Task], judge: Judge | None, done: Done) -> None:
        for task in tasks:
            done(task.number, run_trial(task, _report(task.number, judge)))


def _report(number: int, judge: Judge | None) -> Callable[[int, float], bool] | None:
    return None if judge is None else lambda epoch, value: judge(number, epoch, value)
