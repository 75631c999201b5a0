"""`tersify bench`: a file's network timed beside other engines, each in a process of
its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tersify.cli.common import (
    MaxDecodedBytes,
    Shape,
    Target,
    TargetOption,
    Trust,
    network_and_input,
)
from tersify.cpus import busy, usable_cpus

if TYPE_CHECKING:
    from rich.table import Table

    from tersify.runtime.benchmark import BenchRow
    from tersify.runtime.op_profile import OpTime


def bench(
    file: Annotated[Path, typer.Argument(help="A .terse file.")],
    peer: Annotated[
        list[str] | None, typer.Option(help="An engine to compare with; repeatable.")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Images in a batch; repeatable.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every engine.")] = min(
        2, usable_cpus()
    ),
    rounds: Annotated[
        int, typer.Option(min=1, help="Timing rounds of every engine.")
    ] = 5,
    device: Annotated[
        Literal["cpu", "cuda"],
        typer.Option(help="Where the network runs; cuda: beside torch on the GPU."),
    ] = "cpu",
    layers: Annotated[
        bool,
        typer.Option("--layers", help="Also time every layer of the compiled network."),
    ] = False,
    target: Target = None,
    option: TargetOption = None,
    trust: Trust = False,
    shape: Shape = None,
    json_path: Annotated[
        Path | None,
        typer.Option(
            "--json",
            help="Write the figures here; beside a model.terse the report shows them.",
        ),
    ] = None,
    max_decoded_bytes: MaxDecodedBytes = None,
) -> None:
    """Time FILE compiled by Tersify against PyTorch, ONNX Runtime and others that are
    installed.
    """
    from tersify.cli.terminal_tables import wide_console
    from tersify.codec.atomic import write_text
    from tersify.lab.experiments.provenance import provenance
    from tersify.lab.names import unknown
    from tersify.runtime import CompiledModule
    from tersify.runtime import compile as compile_network
    from tersify.runtime.benchmark import bench as measure
    from tersify.runtime.gpu.benchmark import PEERS, bench_on_gpu
    from tersify.runtime.peers import LOADERS

    net, images = network_and_input(
        file,
        target,
        option,
        shape,
        max_decoded_bytes,
        batch=max(batch or [8]),
        trust=trust,
    )
    if device == "cuda" and layers:
        raise ValueError(
            "--layers times the layers of the CPU's plan; leave it out with --device cuda"
        )
    known = LOADERS if device == "cpu" else PEERS
    usual = (
        ["torch", "torch.compile", "onnxruntime", "tersify"]
        if device == "cpu"
        else list(PEERS)
    )
    wanted = usual if peer is None else [*peer, "tersify"]
    for name in wanted:
        if name not in known:
            raise unknown("engine", name, known)
    errors: dict[str, float] = {}
    batches = batch or [1, 8]
    if device == "cuda":
        rows = bench_on_gpu(
            net, images, peers=wanted, batches=batches, rounds=rounds, errors=errors
        )
    else:
        rows = measure(
            net,
            images,
            peers=wanted,
            batches=batches,
            threads=threads,
            rounds=rounds,
            errors=errors,
        )
    wide_console().print(speed_table(rows, errors))
    if told := busy():
        typer.echo(f"tersify: {told}", err=True)
    times: list[OpTime] = []
    if layers:
        few = images[: min(batch or [1])]
        compiled = compile_network(net, images, threads=threads)
        assert isinstance(compiled, CompiledModule)
        times = compiled.profile(few)
        wide_console().print(layer_table(times, len(few)))
    if json_path is not None:
        plain = [
            {
                "peer": row.peer,
                "batch": row.batch,
                "threads": row.threads,
                "missing": row.missing,
            }
            | (
                {
                    "median_ms": row.median_ms,
                    "best_ms": row.best_ms,
                    "spread_ms": row.spread_ms,
                }
                if row.times
                else {}
            )
            for row in rows
        ]
        record = {"rows": plain, "errors": errors, **provenance()}
        if layers:
            record |= {
                "layers": list(map(layer_record, times)),
                "layers_batch": len(few),
            }
        write_text(json_path, json.dumps(record, indent=1) + "\n")


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
                cells.append(
                    f"{row.median_ms:.2f} ms (tersify {speedup(ours, row):.1f}× as fast)"
                )
        table.add_row(name, *cells, f"{errors[name]:.1e}" if name in errors else "–")
    return table


def layer_record(time: OpTime) -> dict[str, object]:
    """What the report reads: the layer under the name of its weight."""
    name = time.parameter or time.name
    return {
        "name": name,
        "kind": time.kind,
        "kernel": time.kernel,
        "ms": 1e-3 * time.microseconds,
    }


def layer_table(times: list[OpTime], batch: int) -> Table:
    """One line an operation of the plan: what served it and how long that took."""
    from rich.table import Table

    whole = sum(time.microseconds for time in times) or 1.0
    table = Table("layer", "kernel", f"µs at batch {batch}", "of all")
    for time in times:
        fraction = f"{100 * time.microseconds / whole:.1f} %"
        table.add_row(
            time.parameter or time.name,
            time.kernel or "–",
            f"{time.microseconds:.1f}",
            fraction,
        )
    return table
