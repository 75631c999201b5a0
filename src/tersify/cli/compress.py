"""`tersify compress`: train a network into its compressed form and leave a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tersify.cli.common import DATA_HELP, MaxDecodedBytes, allowed, load_recipe, pairs, resumable

if TYPE_CHECKING:
    from rich.console import Console

NEARLY_ALL_ZERO = 99.0


def compress(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(help="A reference network, file.py:function, torchvision:NAME, timm:NAME or hf:PATH.")
    ],
    data: Annotated[str, typer.Option(help=DATA_HELP)],
    recipe: Annotated[str, typer.Option(help="A ready recipe, a TOML file, or none (train it dense).")],
    out: Annotated[Path, typer.Option(help="The run directory; new or empty, unless --resume.")],
    epochs: Annotated[int | None, typer.Option(help="Training epochs; the recipe may name them.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Start from these weights.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where the data sets lie.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    dense_twin: Annotated[
        bool, typer.Option("--dense-twin", help="Train the same network dense as well, for comparison.")
    ] = False,
    batch_size: Annotated[int | None, typer.Option(help="Images in a batch.")] = None,
    lr: Annotated[float | None, typer.Option(help="The learning rate at the start.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, order and augmentation.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    compile_mode: Annotated[
        str | None, typer.Option("--compile", help="off, default, reduce-overhead or max-autotune.")
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for the network; repeatable.")] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE for the trainer; repeatable.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard scalars.")] = False,
    max_decoded_bytes: MaxDecodedBytes = None,
) -> None:
    """Train TARGET under a recipe; OUT gets model.terse, metrics.json, history.jsonl, recipe.toml, report.html.

    On several devices: torchrun --nproc-per-node N -m tersify compress …
    """
    from tersify.cli.tables import wide_console
    from tersify.lab.trainer import Job, RunDirectory, TrainConfig, display_for, pick_device
    from tersify.lab.trainer.distributed import process_group, restarted
    from tersify.ranks import first

    chosen = load_recipe(recipe)
    flags = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "seed": seed, "device": device,
             "compile": compile_mode}  # fmt: skip
    overrides = pairs(setting, "--set") | {key: value for key, value in flags.items() if value is not None}
    job = Job(
        target=target,
        data=data,
        config=TrainConfig.from_mapping(chosen.train if chosen else {}, **overrides),
        recipe=chosen,
        options=pairs(option, "--option"),
        weights=weights,
        data_root=data_root,
        **allowed(max_decoded_bytes),
    )
    label = "dense" if chosen is None else Path(recipe).stem
    console = wide_console()
    rows: dict[str, dict[str, Any]] = {}
    resume = resume or restarted()
    with process_group(pick_device(job.config.device)), resumable(context, out):
        rows[label] = job.run(out, resume=resume, display=display_for(console, label), tensorboard=tensorboard)
        if dense_twin and chosen is not None:
            twin_out = out / "dense-twin"
            twin = job.dense_twin().run(twin_out, resume=resume, display=display_for(console, "dense twin"))
            rows[label]["dense_accuracy"] = twin["accuracy"]
            first(lambda: RunDirectory(out).write_metrics(rows[label]))
            rows = {"dense twin": twin} | rows
        first(lambda: _tell(console, out, label, rows))


def _tell(console: Console, out: Path, label: str, rows: dict[str, dict[str, Any]]) -> None:
    from tersify.cli.tables import print_metrics
    from tersify.report import write_report

    print_metrics(console, rows)
    if rows[label].get("sparsity", 0.0) > NEARLY_ALL_ZERO:
        console.print(
            f"{rows[label]['sparsity']:.1f} % of the weights are zero: the threshold outran the latents. Train longer, "
            "lower the recipe's cap, or use ternary-target, which aims at a share of zeros.",
            highlight=False,
        )
    for path in (out / "model.terse", write_report([out])):
        console.print(f"{path}", highlight=False, markup=False, soft_wrap=True)
