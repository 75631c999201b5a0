"""What a person sees while a network trains: bars on a terminal, one line an epoch
elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

_HIDDEN = ("epoch", "lr", "seconds", "test_loss", "top3", "top5", "train_accuracy")
_FORMATS = {
    "loss": "loss {:.4f}",
    "accuracy": "accuracy {:.2f} %",
    "sparsity": "sparsity {:.1f} %",
    "entropy_bits": "entropy {:.2f} bit",
}


class Display:
    """Shows nothing; the base of the displays, and the display of tests and libraries."""

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def begin(self, *, epochs: int, done: int, steps: int) -> None:
        """`done` of `epochs` epochs lie behind us; each takes `steps` batches."""

    def batch_done(self) -> None: ...

    def epoch_done(self, row: Mapping[str, Any]) -> None: ...


class LineDisplay(Display):
    """One line for each epoch, for logs and pipes."""

    def __init__(self, console: Console, label: str) -> None:
        self._console = console
        self._label = label

    def begin(self, *, epochs: int, done: int, steps: int) -> None:
        self._epochs = epochs
        self._before = done
        self._start = time.monotonic()

    def epoch_done(self, row: Mapping[str, Any]) -> None:
        epoch = int(row["epoch"])
        # Epochs of a resumed run's past took none of this time.
        pace = (time.monotonic() - self._start) / (epoch - self._before)
        left = f"{pace * (self._epochs - epoch):.0f} s left"
        line = f"{self._label}: epoch {epoch}/{self._epochs} · {describe(row)} · {row['seconds']:.1f} s · {left}"
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class BarDisplay(Display):
    """Two bars, one for the epochs and one for the batches of the current epoch."""

    def __init__(self, console: Console, label: str) -> None:
        self._label = label
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
        )

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def begin(self, *, epochs: int, done: int, steps: int) -> None:
        self._epochs_bar = self._progress.add_task(
            self._label, total=epochs, completed=done, figures=""
        )
        self._steps_bar = self._progress.add_task("  batches", total=steps, figures="")

    def batch_done(self) -> None:
        self._progress.advance(self._steps_bar)

    def epoch_done(self, row: Mapping[str, Any]) -> None:
        self._progress.update(
            self._epochs_bar, completed=row["epoch"], figures=describe(row)
        )
        self._progress.reset(self._steps_bar)


def display_for(console: Console, label: str) -> Display:
    return (
        BarDisplay(console, label)
        if console.is_terminal
        else LineDisplay(console, label)
    )


def describe(row: Mapping[str, Any]) -> str:
    """The figures of a history row worth watching: loss, accuracy, sparsity, entropy
    and the session's own.
    """
    shown = [(key, value) for key, value in row.items() if key not in _HIDDEN]
    return " · ".join(
        _FORMATS.get(key, f"{key} {{:.3g}}").format(value) for key, value in shown
    )
