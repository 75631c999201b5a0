"""`tersify reproduce`: a paper's table or figure, measured beside the published one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tersify.cli.common import check_begun, refuse_flags, resumable
from tersify.cli.completion import experiments

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tersify.lab.experiments import Outcome


def reproduce(
    context: typer.Context,
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="The experiment's name; see --list.", autocompletion=experiments
        ),
    ] = None,
    smoke: Annotated[
        bool,
        typer.Option(
            "--smoke", help="Little data and few epochs, to check that it runs."
        ),
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the runs in --out.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where the runs go; runs/EXPERIMENT[-smoke][-validation] by default."
        ),
    ] = None,
    list_them: Annotated[
        bool, typer.Option("--list", help="List the experiments and stop.")
    ] = False,
    row: Annotated[
        list[str] | None, typer.Option(help="Only this row, by its id; repeatable.")
    ] = None,
    validate: Annotated[
        bool,
        typer.Option(
            "--validate",
            help="Measure on a tenth of the training data, held out; to choose settings.",
        ),
    ] = False,
    seed: Annotated[
        list[int] | None, typer.Option(help="This seed instead; repeatable.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Epochs of every row; milestones scale along.")
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of the data sets.")
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
    png: Annotated[
        bool,
        typer.Option("--png", help="Also draw each figure as PNG; needs chromium."),
    ] = False,
) -> None:
    """Run the rows of EXPERIMENT, print published, ours and the difference, and draw
    its figures.
    """
    from tersify.cli.sweep import sweep_display
    from tersify.cli.terminal_tables import wide_console
    from tersify.lab.experiments import Request, Watch, known, listed, run_experiment
    from tersify.lab.trainer import display_for

    if list_them:
        for each in map(listed, known()):
            typer.echo(
                f"{each.name}: {each.title}"
                + (f" ({', '.join(each.rows)})" if each.rows else "")
            )
        return
    if experiment is None:
        raise ValueError(
            "name the experiment to reproduce; `tersify reproduce --list` shows them"
        )
    takes = listed(experiment).takes
    settings = {"epochs": epochs, "device": device, "compile": compile_mode}
    flags: dict[str, Any] = {
        "row": row,
        "seed": seed,
        "validate": validate,
        "png": png,
        **settings,
    }
    refuse_flags(
        {f"--{name}": value for name, value in flags.items() if name not in takes},
        f"is for experiments that train their rows; leave it out for {experiment}",
    )
    home = (
        out
        or Path("runs")
        / f"{experiment}{'-smoke' if smoke else ''}{'-validation' if validate else ''}"
    )
    if resume:
        check_begun(home)
    request = Request(
        out=home,
        smoke=smoke,
        resume=resume,
        validate=validate,
        rows=row or (),
        seeds=seed or (),
        data_root=data_root,
        settings={name: value for name, value in settings.items() if name in takes},
    )
    console = wide_console()
    with resumable(context, home), sweep_display(console) as sweeping:
        watch = Watch(
            tell=typer.echo,
            run=lambda label: display_for(console, label),
            sweep=sweeping,
        )
        outcome = run_experiment(experiment, request, watch)
    _show(console, outcome)
    if smoke:
        console.print(
            "A smoke run only checks that everything runs; its figures mean nothing.",
            highlight=False,
        )
    for path in (*outcome.files, *(_pngs(outcome.files) if png else ())):
        console.print(f"{path}", highlight=False, soft_wrap=True)


def _show(console: Console, outcome: Outcome) -> None:
    from tersify.cli.speech_tables import print_speech
    from tersify.cli.sweep import print_engines

    if outcome.shows == "rows":
        console.print(_table(outcome.results))
    elif outcome.shows == "speech":
        print_speech(console, outcome.results)
    elif outcome.shows == "sweep":
        print_engines(console, outcome.results)


def _pngs(files: Sequence[Path]) -> list[Path]:
    from tersify.report import raster

    return [raster.write_png(path) for path in files if path.suffix == ".svg"]


def _table(results: Mapping[str, Any]) -> Table:
    """Published | ours | difference for each column of the experiment that any row has,
    one line a row.
    """
    from rich.table import Table

    seeds = ", ".join(map(str, results["seeds"]))
    table = Table(
        title=f"{results['source']} · on {results['data']}, seeds {seeds}",
        caption="published, ours (mean ± standard deviation over the seeds), difference",
    )
    table.add_column("")
    rows = results["rows"]
    cells: list[list[str]] = [[row["name"]] for row in rows]
    for metric, heading in results["columns"].items():
        means = [row["ours"][metric]["mean"] for row in rows if metric in row["ours"]]
        if any(metric in row["published"] for row in rows):
            headings, shown = [heading, "ours", "diff."], slice(None)
        elif means:
            headings, shown = [f"{heading}, ours"], slice(1, 2)
        else:
            continue
        for each in headings:
            table.add_column(each, justify="right")
        for line, row in zip(cells, rows, strict=True):
            line.extend(_cells(row, metric, _digits(means))[shown])
    for line in cells:
        table.add_row(*line)
    return table


def _digits(values: list[float]) -> int:
    """Behind the point: percents and milliseconds want two, bits and scores below 2
    three, large counts none.
    """
    if min(values, default=0) >= 1000:
        return 0
    return 3 if max(map(abs, values), default=2) < 2 else 2


def _cells(row: dict[str, Any], metric: str, digits: int) -> tuple[str, str, str]:
    published = row["published"].get(metric, ())
    values = published if isinstance(published, (list, tuple)) else [published]
    stated = "–".join(
        f"{value:.{digits}f}" if len(values) == 1 else f"{value:g}" for value in values
    )
    if metric in row["published_spread"]:
        stated += f" ± {row['published_spread'][metric]:.{digits}f}"
    difference = (
        f"{row['difference'][metric]:+.{digits}f}"
        if metric in row["difference"]
        else ""
    )
    return stated, _ours(row, metric, digits), difference


def _ours(row: dict[str, Any], metric: str, digits: int) -> str:
    ours = row["ours"].get(metric)
    if ours is None:
        return ""
    spread = "" if ours["std"] is None else f" ± {ours['std']:.{digits}f}"
    return f"{ours['mean']:.{digits}f}{spread}"
