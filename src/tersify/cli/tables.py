"""Tables of measured figures for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} %"


def size(value: float) -> str:
    return f"{int(value):,} B"


def print_metrics(console: Console, rows: Mapping[str, Mapping[str, float]]) -> None:
    """One line a network: accuracy, sparsity, entropy, bytes on disk, training time."""
    table = Table("network", "accuracy", "best (epoch)", "sparsity", "entropy", "on disk", "training")
    for name, m in rows.items():
        compressed = "sparsity" in m
        table.add_row(
            name,
            percent(m["accuracy"]),
            f"{percent(m['accuracy_best'])} ({m['best_epoch']:.0f})",
            percent(m.get("sparsity")),
            f"{m['entropy_bits']:.3f} bit/weight" if compressed else "–",
            size(m["file_bytes"]),
            f"{m['train_seconds']:.1f} s",
        )
    print_table(console, table)


def print_table(console: Console, table: Table) -> None:
    """At least wide enough that no figure is cut, whatever the terminal says."""
    needed = console.measure(table).minimum if console.is_terminal else 160
    console.print(table, width=max(console.width, needed))


def align_right(table: Table, columns: Sequence[int]) -> None:
    for index in columns:
        table.columns[index].justify = "right"
