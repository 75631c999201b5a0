"""`tersify bench`: a file's network timed beside other engines, each in a process of its own."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tersify.cli.common import MaxDecodedBytes, allowed, pairs

if TYPE_CHECKING:
    from rich.table import Table

    from tersify.runtime.benchmark import BenchRow

MAX_INPUT = 1 << 26  # numbers in one input: a file from elsewhere must not choose how much memory is taken


def bench(
    file: Annotated[Path, typer.Argument(help="A .terse file.")],
    peer: Annotated[list[str] | None, typer.Option(help="An engine to compare with; repeatable.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Images in a batch; repeatable.")] = None,
    threads: Annotated[int, typer.Option(help="Threads of every engine.")] = min(2, os.cpu_count() or 1),
    rounds: Annotated[int, typer.Option(help="How often every engine gets its turn.")] = 5,
    target: Annotated[
        str | None, typer.Option(help="What the network is, where the file does not name a reference network.")
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for --target; repeatable.")] = None,
    shape: Annotated[str | None, typer.Option(help="One input, such as 3,32,32, where the file does not say.")] = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the figures here; beside a model.terse the report shows them.")
    ] = None,
    max_decoded_bytes: MaxDecodedBytes = None,
) -> None:
    """Time FILE compiled by Tersify against PyTorch, ONNX Runtime and others that are installed."""
    import torch

    from tersify.cli.tables import wide_console
    from tersify.lab.names import unknown
    from tersify.lab.trainer import load_network
    from tersify.runtime.benchmark import bench as measure
    from tersify.runtime.peers import LOADERS

    net = load_network(file, target=target, options=pairs(option, "--option"), **allowed(max_decoded_bytes))
    torch.manual_seed(0)
    images = torch.randn(max(batch or [8]), *input_shape(file, shape))
    wanted = [*(peer or ["torch", "torch.compile", "onnxruntime"]), "tersify"]
    for name in wanted:
        if name not in LOADERS:
            raise unknown("engine", name, LOADERS)
    errors: dict[str, float] = {}
    rows = measure(net, images, peers=wanted, batches=batch or [1, 8], threads=threads, rounds=rounds, errors=errors)
    wide_console().print(speed_table(rows, errors))
    if json_path is not None:
        plain = [
            {"peer": row.peer, "batch": row.batch, "threads": row.threads, "missing": row.missing}
            | ({"median_ms": row.median_ms, "best_ms": row.best_ms, "spread_ms": row.spread_ms} if row.times else {})
            for row in rows
        ]
        json_path.write_text(json.dumps({"rows": plain, "errors": errors}, indent=1) + "\n", encoding="utf-8")


def input_shape(file: Path, shape: str | None) -> tuple[int, ...]:
    """One input of the file's network, from the flag or from what the trainer wrote into the file."""
    from tersify import codec

    return checked_shape(codec.open(file).metadata.get("input"), shape)


def checked_shape(stored: Any, shape: str | None) -> tuple[int, ...]:
    """What the flag says, or what was stored; neither may ask for too much."""
    if shape is not None or stored is None:
        try:
            stored = [int(n) for n in (shape or "").split(",")]
        except ValueError:
            raise ValueError(f"--shape takes the size of one input such as 3,32,32, got {shape!r}") from None
    fits = isinstance(stored, list) and all(type(n) is int and n > 0 for n in stored)
    if not fits or math.prod(stored) > MAX_INPUT:
        raise ValueError(f"one input has the size {stored!r}; --shape takes whole numbers such as 3,32,32")
    return tuple(stored)


def speed_table(rows: list[BenchRow], errors: dict[str, float]) -> Table:
    """Engines down, batches across: milliseconds and how many times faster Tersify is."""
    from rich.table import Table

    from tersify.runtime.benchmark import speedup

    batches = sorted({row.batch for row in rows})
    table = Table("engine", *(f"batch {b}" for b in batches), "largest error")
    found = {(row.peer, row.batch): row for row in rows}
    for name in dict.fromkeys(row.peer for row in rows):
        cells = []
        for b in batches:
            row, ours = found[name, b], found["tersify", b]
            if not row.times:
                cells.append(f"missing: {row.missing}")
            elif row is ours or not ours.times:
                cells.append(f"{row.median_ms:.2f} ms")
            else:
                cells.append(f"{row.median_ms:.2f} ms (tersify {speedup(ours, row):.1f}× as fast)")
        table.add_row(name, *cells, f"{errors[name]:.1e}" if name in errors else "–")
    return table
