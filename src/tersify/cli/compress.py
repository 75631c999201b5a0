"""`tersify compress`: train a network into its compressed form and leave a run
directory.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tersify.cli.common import (
    DATA_HELP,
    MaxDecodedBytes,
    allowed,
    check_begun,
    load_recipe,
    pairs,
    resumable,
)
from tersify.cli.completion import data_sets, networks, recipes_or_none

if TYPE_CHECKING:
    from rich.console import Console

NEARLY_ALL_ZERO = 99.0
BELOW_DENSE = 1.5  # points of accuracy; ready recipes with their defaults lose less
MOSTLY_DENSE = 0.5  # of a file's bytes


def compress(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            help="A reference network, file.py:function, torchvision:NAME, timm:NAME or hf:PATH.",
            autocompletion=networks,
        ),
    ],
    data: Annotated[str, typer.Option(help=DATA_HELP, autocompletion=data_sets)],
    recipe: Annotated[
        str,
        typer.Option(
            help="A ready recipe, a TOML file, or none (train it dense).",
            autocompletion=recipes_or_none,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The run directory; new or empty, unless --resume. Without it a folder of runs/ by the names given."
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Training epochs; without it the recipe's, or as many as fit the data."
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Start from these weights, and not from a dense network trained here first."
        ),
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of the data sets.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run in --out.")
    ] = False,
    dense_twin: Annotated[
        bool,
        typer.Option(
            help="Train the same network dense as well, for comparison. Without it, a recipe that starts from a "
            "trained network still trains a dense one first, unless --weights has one, and does not show it."
        ),
    ] = True,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Images in a batch; without it the recipe's, or what fits the data."
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            help="The initial learning rate, used as given; a recipe's is for batches of 256."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of weights, order and augmentation.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")
    ] = None,
    compile_mode: Annotated[
        str | None,
        typer.Option(
            "--compile", help="off, default, reduce-overhead or max-autotune."
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE for the network; repeatable.")
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE for the trainer; repeatable."),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write TensorBoard scalars.")
    ] = False,
    max_decoded_bytes: MaxDecodedBytes = None,
) -> None:
    """Train TARGET under a recipe; OUT gets model.terse, metrics.json, history.jsonl,
    recipe.toml, report.html.

    On several devices: torchrun --nproc-per-node N -m tersify compress …
    """
    from tersify.cli.terminal_tables import wide_console
    from tersify.lab.data import dataset
    from tersify.lab.trainer import (
        DENSE,
        Job,
        RunDirectory,
        display_for,
        fitted,
        pick_device,
        run_with_twin,
    )
    from tersify.lab.trainer.distributed import process_group, restarted
    from tersify.ranks import first

    chosen = load_recipe(recipe)
    label = "dense" if chosen is None else Path(recipe).stem
    home = out or Path("runs") / "-".join(
        re.sub(r"[^\w.-]+", "-", name) for name in (target, data, label)
    )
    flags = {
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "seed": seed,
        "device": device,
        "compile": compile_mode,
    }
    overrides = pairs(setting, "--set") | {
        key: value for key, value in flags.items() if value is not None
    }
    table = chosen.train if chosen else DENSE
    # a mistake in the settings is told before the data are read
    fitted(table, 1, **overrides)
    # torchrun may start a process again before the run has left anything
    goes_on = resume or restarted()
    first(lambda: RunDirectory(home).check_usable(resume=goes_on))
    samples = dataset(data, root=data_root)
    job = Job(
        target=target,
        data=data,
        config=fitted(table, samples.train.samples, **overrides),
        recipe=chosen,
        options=pairs(option, "--option"),
        weights=weights,
        data_root=data_root,
        **allowed(max_decoded_bytes),
    )
    console = wide_console()
    with process_group(pick_device(job.config.device)), resumable(context, home):
        if resume and not restarted():
            first(lambda: check_begun(home))  # the others may not see the folder
        rows = run_with_twin(
            job,
            home,
            label=label,
            wanted=dense_twin,
            resume=goes_on,
            tensorboard=tensorboard,
            data=samples,
            display=lambda name: display_for(console, name),
            tell=lambda line: first(lambda: _say(console, line)),
        )
        first(lambda: _print_and_report(console, home, label, rows))


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def _print_and_report(
    console: Console, out: Path, label: str, rows: dict[str, dict[str, float]]
) -> None:
    from tersify.cli.terminal_tables import print_metrics
    from tersify.report import write_report

    print_metrics(console, rows)
    if rows[label].get("sparsity", 0.0) > NEARLY_ALL_ZERO:
        console.print(
            f"{rows[label]['sparsity']:.1f} % of the weights are zero: the threshold outran the latents. Train longer, "
            "lower the recipe's cap, or use ternary-target, which aims at a fraction of zeros.",
            highlight=False,
        )
    dense = rows[label].get("dense_accuracy")
    if dense is not None and dense - rows[label]["accuracy"] > BELOW_DENSE:
        console.print(
            f"{label} ended {dense - rows[label]['accuracy']:.1f} points below its dense twin; "
            "train longer (--epochs), or ask for fewer zeros or more bits.",
            highlight=False,
        )
    if "sparsity" in rows[label] and (told := _dense_part(out / "model.terse")):
        _say(console, told)
    for path in (out / "model.terse", write_report([out])):
        _say(console, f"{path}")


def _dense_part(file: Path) -> str | None:
    """One sentence where most of the bytes belong to matrices that no rule reached."""
    from tersify import codec

    facts = codec.inspect(file)
    dense = [
        row
        for row in facts["tensors"]
        if row["kind"] == "dense" and len(row["shape"]) > 1
    ]
    share = sum(row["bytes"] for row in dense) / facts["file_bytes"]
    if share < MOSTLY_DENSE:
        return None
    largest = max(dense, key=lambda row: row["bytes"])["name"]
    return (
        f"{100 * share:.0f} % of the bytes are matrices that no rule reached, {largest!r} above all: a rule '*' leaves "
        "embeddings, normalization and frozen weights alone; a rule with the weight's full name compresses it."
    )
