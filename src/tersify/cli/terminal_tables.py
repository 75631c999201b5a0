"""Tables of measured figures for a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tersify.cli import printable

LINE_WIDTH = 150


def wide_console() -> Console:
    """A terminal's own width; elsewhere one that cuts no table."""
    console = Console()
    return console if console.is_terminal else Console(width=LINE_WIDTH)


def plain(text: str) -> Text:
    """Text from a file, which may neither style the table nor steer the terminal."""
    return Text(printable(text))


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} %"


def size(value: float) -> str:
    return f"{int(value):,} B"


def print_metrics(console: Console, rows: Mapping[str, Mapping[str, float]]) -> None:
    """One line a network: accuracy and its distance to the dense twin's, sparsity,
    entropy, bytes on disk, time.
    """
    twins = any("dense_accuracy" in m for m in rows.values())
    to_twin = ["to dense"] if twins else []
    table = Table(
        "network",
        "accuracy",
        *to_twin,
        "best (epoch)",
        "sparsity",
        "entropy",
        "on disk",
        "training",
    )
    for name, m in rows.items():
        compressed = "sparsity" in m
        distance = (
            f"{m['accuracy'] - m['dense_accuracy']:+.2f}"
            if "dense_accuracy" in m
            else "–"
        )
        table.add_row(
            name,
            percent(m["accuracy"]),
            *([distance] if twins else []),
            f"{percent(m['accuracy_best'])} ({m['best_epoch']:.0f})",
            percent(m.get("sparsity")),
            f"{m['entropy_bits']:.3f} bit/weight" if compressed else "–",
            size(m["file_bytes"]),
            f"{m['train_seconds']:.1f} s",
        )
    console.print(table)
