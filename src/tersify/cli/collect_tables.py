"""A collection and its timings for a terminal and for a file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from tersify.cli.terminal_tables import plain, size
from tersify.codec.atomic import write_text
from tersify.lab.experiments.provenance import provenance
from tersify.sparse import Collection
from tersify.sparse.backend_times import DENSE, Timing, winners


def contents_table(collection: Collection) -> Table:
    """One line an operation: its sizes, its zeros and its bytes."""
    table = Table(
        "operation",
        "kind",
        "M×N×K",
        "order",
        "zeros",
        "input zeros",
        "weight",
        "best format",
        title=f"{len(collection)} operations",
    )
    for op in collection:
        weight, sizes = op.meta["weight"], "×".join(map(str, op.shape))
        best = weight["best_format"]
        table.add_row(
            plain(op.name),
            plain(op.kind),
            sizes + (f" ({op.groups} groups)" if op.groups > 1 else ""),
            op.order,
            f"{100 * (1 - weight['density']):.1f} %",
            f"{100 * (1 - op.meta['input']['density']):.1f} %",
            f"{size(weight['array_bytes'])} {weight['format']}",
            f"{size(weight['format_bytes'][best])} {best}",
        )
    return table


def network_lines(collection: Collection) -> list[str]:
    """One line a network: its zeros, its accuracy, and which sparse weights were left
    out.
    """
    lines = []
    for name, facts in {
        op.meta["model"]["name"]: op.meta["model"] for op in collection
    }.items():
        zeros, accuracy, skipped = map(facts.get, ("sparsity", "accuracy", "skipped"))
        told = [
            f"{100 * zeros:.1f} % zeros" if isinstance(zeros, float) else "",
            f"accuracy {accuracy:.2f} %" if isinstance(accuracy, (int, float)) else "",
            f"left out: {', '.join(skipped)}"
            if isinstance(skipped, dict) and skipped
            else "",
        ]
        lines.append(f"{name}: {', '.join(filter(None, told))}")
    return lines


def timing_tables(timings: list[Timing]) -> list[Table]:
    """The winner of each operation beside dense, and each backend over all operations."""
    found = {(t.operation, t.backend): t for t in timings}
    best = winners(timings)

    def cells(t: Timing) -> list[str]:
        return [f"{1e3 * t.seconds:.3f} ms", f"{t.gflops:.2f}", size(t.weight_bytes)]

    each = Table(
        "operation",
        "dense",
        "GFLOP/s",
        "weight",
        "winner",
        "time",
        "GFLOP/s",
        "weight",
        "times faster",
        title="GFLOP/s count non-zero weights only",
    )
    for name, winner in best.items():
        won = found[name, winner["backend"]]
        each.add_row(
            plain(name),
            *cells(found[name, DENSE]),
            won.backend,
            *cells(won),
            f"{winner['speedup']:.2f}×",
        )
    total = Table("backend", "all operations", "wins", "largest error")
    for backend in dict.fromkeys(t.backend for t in timings):
        own = [t for t in timings if t.backend == backend]
        wins = sum(winner["backend"] == backend for winner in best.values())
        total.add_row(
            backend,
            f"{1e3 * sum(t.seconds for t in own):.3f} ms",
            str(wins),
            f"{max(t.error for t in own):.1e}",
        )
    return [each, total]


def write_timings(timings: list[Timing], threads: int, path: Path | None) -> None:
    if path is not None:
        record = provenance() | {
            "threads": threads,
            "rows": list(map(asdict, timings)),
            "winners": winners(timings),
        }
        write_text(path, json.dumps(record, indent=1) + "\n")
