"""`tersify collect`: the sparse operations of a network as a collection, timed and exported on request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tersify.cli.common import MaxDecodedBytes, allowed, pairs, random_input, refuse_flags

if TYPE_CHECKING:
    from torch import nn

    from tersify.sparse import Collection


def collect(
    target: Annotated[
        str,
        typer.Argument(
            help="A reference network, file.py:function, torchvision:NAME, timm:NAME, hf:PATH, a .terse file, "
            "or a collection that is there (for --bench and --export)."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="The collection's folder: new, or one to --append to.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Where the calibration batch comes from: a data set as for compress.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="The network's weights: .terse, .safetensors or torch.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Prune by this recipe, without training, before collecting.")
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for the network; repeatable.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where the data sets lie.")] = None,
    shape: Annotated[
        str | None, typer.Option(help="One random input, such as 3,32,32, where there is no --data.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Inputs in the calibration batch.")] = 8,
    columns: Annotated[int, typer.Option(help="The most input vectors that are kept of an operation.")] = 256,
    format: Annotated[
        str, typer.Option(help="How weights are stored: csr, csc, coo, bsr, dok, bitmap, hybrid, dense or best.")
    ] = "csr",
    order: Annotated[str, typer.Option(help="The operands' order: auto, W@X or X@W.T.")] = "auto",
    dense: Annotated[bool, typer.Option("--dense", help="Collect layers with fewer than 10 % zeros too.")] = False,
    append: Annotated[bool, typer.Option("--append", help="Add to the collection in --out.")] = False,
    name: Annotated[str | None, typer.Option(help="The network's name in the collection.")] = None,
    licence: Annotated[str | None, typer.Option(help="The licence of the weights.")] = None,
    evaluate: Annotated[bool, typer.Option("--evaluate", help="Measure the accuracy on --data's test set.")] = False,
    bench: Annotated[bool, typer.Option("--bench", help="Time every operation on every backend.")] = False,
    backend: Annotated[list[str] | None, typer.Option(help="A backend for --bench; repeatable.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often every backend gets its turn.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every backend.")] = 1,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the timings here.")] = None,
    export: Annotated[
        list[str] | None, typer.Option(help="mtx, smtx, tns or timeloop, into the collection; repeatable.")
    ] = None,
    max_decoded_bytes: MaxDecodedBytes = None,
) -> None:
    """Run TARGET on a calibration batch and store each sparse operation: weight, input, output and what they are."""
    from tersify.cli import printable
    from tersify.cli.collect_tables import contents_table, network_lines, timing_tables, write_timings
    from tersify.cli.tables import wide_console
    from tersify.sparse import BACKENDS, FORMATS, Collection
    from tersify.sparse.exports import EXPORTS

    for given, known in ((backend, BACKENDS), (export, EXPORTS), ([format], [*FORMATS, "best"])):
        for each in given or ():
            if each not in known:
                raise ValueError(f"unknown name {each!r}; known: {', '.join(known)}")
    if not bench:
        refuse_flags({"--backend": backend, "--json": json_path}, "is for --bench; add that")
    console = wide_console()
    if out is None:
        if not Path(target).is_dir():
            raise ValueError(
                f"--out is missing: the folder that gets the collection of {target}; without it {target} must be the "
                "folder of a collection that is there"
            )
        refuse_flags(
            {"--data": data, "--weights": weights, "--recipe": recipe, "--option": option, "--shape": shape,
             "--evaluate": evaluate, "--append": append, "--name": name, "--licence": licence, "--dense": dense},
            f"changes nothing in the collection {target}; give the network and --out, or leave it out",
        )  # fmt: skip
        collection = Collection(target)
    else:
        net, facts = _network(target, weights, pairs(option, "--option"), allowed(max_decoded_bytes))
        example, calibration = _example(net, data, data_root, batch, shape, facts.pop("input", None))
        collection = _collected(
            net, example, recipe, facts, evaluate=(data, data_root) if evaluate else None,
            out=out, name=name or _plain_name(target), format=format, columns=columns, order=order, append=append,
            licence=licence, **({"min_sparsity": 0.0} if dense else {}),
            metadata={"target": target, "calibration": calibration},
        )  # fmt: skip
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
        console.print(f"{len(paths)} files in {collection.path / f'export-{each}'}", highlight=False, soft_wrap=True)


def _network(
    target: str, weights: Path | None, options: dict[str, Any], limit: dict[str, int]
) -> tuple[nn.Module, dict[str, Any]]:
    """The network in eval mode, and what its file says about it."""
    import hashlib

    from tersify import codec
    from tersify.lab import resolve_target
    from tersify.lab.trainer import load_network
    from tersify.lab.trainer.stored import load_weights

    file = Path(target) if target.endswith(".terse") else weights
    if target.endswith(".terse") and weights is not None:
        raise ValueError(f"{target} has its own weights; leave --weights away, or name the network instead of the file")
    if file is None:
        return resolve_target(target, **options).eval(), {}
    known = None if target.endswith(".terse") else target
    if file.suffix == ".terse":
        remedy = f"name it and its file: tersify collect file.py:function --weights {file}"
        net = load_network(file, target=known, options=options, remedy=remedy, **limit)
        stored = codec.open(file, **limit).metadata
    else:
        net, stored = load_weights(resolve_target(target, **options), file, **limit).eval(), {}
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    measured = stored.get("measured")
    metrics = file.parent / "metrics.json"
    if file.name == "model.terse" and metrics.is_file():
        measured = json.loads(metrics.read_text(encoding="utf-8"))
    accuracy = measured.get("accuracy") if isinstance(measured, dict) else None
    checkpoint = {"name": file.name, "sha256": digest}
    return net, {"checkpoint": checkpoint, "accuracy": accuracy, "input": stored.get("input")}


def _example(
    net: nn.Module, data: str | None, data_root: Path | None, batch: int, shape: str | None, stored: Any
) -> tuple[Any, str]:
    """One batch, and where it comes from: training images, random token numbers, or noise of a known shape."""
    import torch

    from tersify.lab import dataset, normalize
    from tersify.lab.trainer import check_fits

    if data is not None:
        loaded = dataset(data, root=data_root)
        check_fits(net, loaded)
        chosen = torch.randperm(len(loaded.train), generator=torch.Generator().manual_seed(0))[:batch]
        return normalize(loaded.train.images[chosen], loaded), f"{len(chosen)} training samples of {data}"
    example = random_input(net, stored, shape, batch, other="--data, or ")
    kind = "normal" if example.is_floating_point() else "token"
    return example, f"{'×'.join(map(str, example.shape))} random {kind} numbers"


def _collected(
    net: nn.Module, example: Any, recipe: str | None, facts: dict[str, Any], *, evaluate: Any, **more: Any
) -> Collection:
    import torch

    import tersify
    from tersify.lab import dataset
    from tersify.lab.trainer import evaluate as measure

    if recipe is not None:
        tersify.compress_(net, recipe)
        facts = facts | {"accuracy": None}
    if evaluate is not None:
        if evaluate[0] is None:
            raise ValueError("--evaluate needs --data")
        loaded = dataset(evaluate[0], root=evaluate[1])
        facts = facts | measure(net, loaded, loaded.test, device=torch.device("cpu"), amp=False)
    metadata = more.pop("metadata") | {key: value for key, value in facts.items() if key == "checkpoint"}
    return tersify.collect(net, example, recipe=recipe, accuracy=facts.get("accuracy"), metadata=metadata, **more)


def _plain_name(target: str) -> str:
    """A file's name without folders and endings; a network's name as it is."""
    path, _, function = target.rpartition(":")
    if target.endswith(".terse"):
        path, function = target, ""
    stem = Path(path).stem if "/" in path or "." in path else path
    return ":".join(part for part in (stem, Path(function).name) if part)
