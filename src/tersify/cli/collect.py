"""`tersify collect`: the sparse operations of a network as a collection, timed and
exported on request.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tersify.cli.common import MaxDecodedBytes, allowed, pairs, refuse_flags
from tersify.cli.completion import data_sets, networks, recipes


def collect(
    target: Annotated[
        str,
        typer.Argument(
            help="A reference network, file.py:function, torchvision:NAME, timm:NAME, hf:PATH, a .terse file, "
            "or a collection that is there (for --bench and --export).",
            autocompletion=networks,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The collection's folder: new, or one to --append to."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Where the calibration batch comes from: a data set as for compress.",
            autocompletion=data_sets,
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="The network's weights: .terse, .safetensors or torch."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Prune by this recipe, without training, before collecting.",
            autocompletion=recipes,
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE for the network; repeatable.")
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of the data sets.")
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="One random input, such as 3,32,32, where there is no --data."
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, help="Inputs in the calibration batch.")
    ] = 8,
    columns: Annotated[
        int, typer.Option(help="Maximum input vectors kept for an operation.")
    ] = 256,
    format: Annotated[
        str,
        typer.Option(
            help="How weights are stored: csr, csc, coo, bsr, dok, bitmap, hybrid, dense or best."
        ),
    ] = "csr",
    order: Annotated[
        str, typer.Option(help="The operands' order: auto, W@X or X@W.T.")
    ] = "auto",
    dense: Annotated[
        bool,
        typer.Option("--dense", help="Collect layers with fewer than 10 % zeros too."),
    ] = False,
    append: Annotated[
        bool, typer.Option("--append", help="Add to the collection in --out.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="The network's name in the collection.")
    ] = None,
    licence: Annotated[
        str | None, typer.Option(help="The licence of the weights.")
    ] = None,
    evaluate: Annotated[
        bool,
        typer.Option("--evaluate", help="Measure the accuracy on --data's test set."),
    ] = False,
    bench: Annotated[
        bool, typer.Option("--bench", help="Time every operation on every backend.")
    ] = False,
    backend: Annotated[
        list[str] | None, typer.Option(help="A backend for --bench; repeatable.")
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="Timing rounds of every backend.")
    ] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every backend.")] = 1,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the timings here.")
    ] = None,
    export: Annotated[
        list[str] | None,
        typer.Option(
            help="mtx, smtx, tns or timeloop, into the collection; repeatable."
        ),
    ] = None,
    max_decoded_bytes: MaxDecodedBytes = None,
) -> None:
    """Run TARGET on a calibration batch and store each sparse operation: weight, input,
    output and what they are.
    """
    from tersify.cli import printable
    from tersify.cli.collect_tables import (
        contents_table,
        network_lines,
        timing_tables,
        write_timings,
    )
    from tersify.cli.terminal_tables import wide_console
    from tersify.lab.collecting import Source, collect_from
    from tersify.sparse import BACKENDS, FORMATS, Collection
    from tersify.sparse.exports import EXPORTS

    for given, known in (
        (backend, BACKENDS),
        (export, EXPORTS),
        ([format], [*FORMATS, "best"]),
    ):
        for each in given or ():
            if each not in known:
                raise ValueError(f"unknown name {each!r}; known: {', '.join(known)}")
    if not bench:
        refuse_flags(
            {"--backend": backend, "--json": json_path}, "is for --bench; add that"
        )
    console = wide_console()
    if out is None:
        if not Path(target).is_dir():
            raise ValueError(
                f"--out is missing: the folder that gets the collection of {target}; without it {target} must be the "
                "folder of a collection that is there"
            )
        refuse_flags(
            {
                "--data": data,
                "--weights": weights,
                "--recipe": recipe,
                "--option": option,
                "--shape": shape,
                "--evaluate": evaluate,
                "--append": append,
                "--name": name,
                "--licence": licence,
                "--dense": dense,
            },
            f"changes nothing in the collection {target}; give the network and --out, or leave it out",
        )
        collection = Collection(target)
    else:
        source = Source(
            target=target,
            weights=weights,
            options=pairs(option, "--option"),
            recipe=recipe,
            data=data,
            data_root=data_root,
            shape=shape,
            batch=batch,
            evaluate=evaluate,
            **allowed(max_decoded_bytes),
        )
        collection = collect_from(
            source,
            out,
            name=name,
            format=format,
            columns=columns,
            order=order,
            append=append,
            licence=licence,
            **({"min_sparsity": 0.0} if dense else {}),
        )
    console.print(contents_table(collection))
    for line in network_lines(collection):
        console.print(printable(line), highlight=False, markup=False, soft_wrap=True)
    if bench:
        timings = collection.bench(backend, rounds=rounds, threads=threads)
        for table in timing_tables(timings):
            console.print(table)
        write_timings(timings, threads, json_path)
    for each in export or ():
        paths = collection.export(each, collection.path / f"export-{each}")
        console.print(
            f"{len(paths)} files in {collection.path / f'export-{each}'}",
            highlight=False,
            soft_wrap=True,
        )
