"""`tersify sweep`: many settings, one front."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tersify.cli.common import check_begun, resumable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tersify.lab.sweep import SweepDisplay

MOST_ROWS = 20


def sweep(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="SWEEP.toml", help="Target, data, recipe, space and objectives."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where the trials go; runs/NAME by default.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the sweep in --out.")
    ] = False,
    engine: Annotated[str, typer.Option(help="local (this process) or ray.")] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="A Ray cluster; without it Ray runs on this machine."),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            help="An Optuna storage URL; SQLite beside the results by default."
        ),
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of the data sets.")
    ] = None,
) -> None:
    """Search the space of SWEEP.toml and show the front; killed at any moment, --resume
    repeats no finished trial.
    """
    from tersify.cli.terminal_tables import wide_console
    from tersify.lab.sweep import Sweep, check_any_complete
    from tersify.lab.sweep import sweep as run
    from tersify.report import write_report

    chosen = Sweep.load(file)
    home = out or Path("runs") / chosen.name
    if resume and storage is None:  # a journal elsewhere may know of trials
        check_begun(home)
    console = wide_console()
    with resumable(context, home), sweep_display(console) as display:
        results = run(
            chosen,
            home,
            resume=resume,
            engine=engine,
            address=address,
            storage=storage,
            data_root=data_root,
            display=display,
        )
    print_front(console, results)
    check_any_complete(results)
    for path in (
        home / "sweep.json",
        *([write_report([home])] if results["front"] else []),
    ):
        console.print(f"{path}", highlight=False, markup=False, soft_wrap=True)


def sweep_display(console: Console) -> Any:
    """A live table on a terminal, one line a trial elsewhere."""
    from tersify.lab.sweep import SweepDisplay

    class Lines(SweepDisplay):
        def __enter__(self) -> SweepDisplay:
            return self

        def __exit__(self, *error: object) -> None:
            return None

        def begin(self, results: Mapping[str, Any]) -> None:
            _say_begin(console, results)

        def trial_done(self, results: Mapping[str, Any], number: int) -> None:
            _say_trial(console, results, number)

    class Live(Lines):
        def __init__(self) -> None:
            from rich.live import Live as RichLive

            self._live = RichLive(console=console, refresh_per_second=2)

        def __exit__(self, *error: object) -> None:
            if self._live.is_started:
                self._live.update("")
                self._live.stop()

        def begin(self, results: Mapping[str, Any]) -> None:
            super().begin(results)
            # not before: a console holds one live table, and a training run has its own
            self._live.start()
            self._live.update(front_table(results))

        def trial_done(self, results: Mapping[str, Any], number: int) -> None:
            if results["trials"][number]["state"] == "failed":
                super().trial_done(results, number)
            self._live.update(front_table(results))

    return Live() if console.is_terminal else Lines()


def print_engines(console: Console, results: Mapping[str, Any]) -> None:
    """One front, what was published, and which engines found the same trials."""
    first, *others = results["engines"].items()
    print_front(console, first[1])
    _line(console, results["published"])
    for engine, found in others:
        _line(
            console,
            f"engine {engine}: the same {len(found['trials'])} trials, the same front of {len(found['front'])}",
        )


def print_front(console: Console, results: Mapping[str, Any]) -> None:
    console.print(front_table(results))
    failed = [trial for trial in results["trials"] if trial["state"] == "failed"]
    for trial in failed[:MOST_ROWS]:
        _line(console, f"trial {trial['number']} failed: {trial['reason']}")


def front_table(results: Mapping[str, Any]) -> Table:
    """The front, best first objective first, with the parameters of each trial."""
    from rich.table import Table

    from tersify.cli.terminal_tables import plain

    states = [trial["state"] for trial in results["trials"]]
    told = ", ".join(
        f"{states.count(s)} {s}"
        for s in ("complete", "pruned", "failed", "running")
        if s in states
    )
    table = Table(
        title=f"The front · {told or 'no trial yet'} of {results['wanted']}",
        title_justify="left",
    )
    table.add_column("trial", justify="right")
    for objective in results["objectives"]:
        arrow = "↑" if objective["direction"] == "maximize" else "↓"
        table.add_column(f"{objective['name']} {arrow}", justify="right")
    for field in results["space"]:
        table.add_column(plain(field))
    down = results["objectives"][0]["direction"] == "maximize"
    best = sorted(
        (results["trials"][n] for n in results["front"]),
        key=lambda t: t["values"][0],
        reverse=down,
    )
    for trial in best[:MOST_ROWS]:
        figures = [f"{value:.6g}" for value in trial["values"]]
        table.add_row(
            str(trial["number"]),
            *figures,
            *(plain(_short(v)) for v in _in_order(results, trial)),
        )
    if len(best) > MOST_ROWS:
        table.caption = f"and {len(best) - MOST_ROWS} more"
    return table


def _in_order(results: Mapping[str, Any], trial: Mapping[str, Any]) -> list[Any]:
    return [trial["params"].get(field, "") for field in results["space"]]


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _say_begin(console: Console, results: Mapping[str, Any]) -> None:
    ended = sum(
        trial["state"] in ("complete", "pruned", "failed")
        for trial in results["trials"]
    )
    if results["trials"]:
        _line(console, f"{ended} of {results['wanted']} trials are done already")


def _say_trial(console: Console, results: Mapping[str, Any], number: int) -> None:
    trial = results["trials"][number]
    params = " · ".join(
        f"{name} {_short(value)}" for name, value in trial["params"].items()
    )
    names = [objective["name"] for objective in results["objectives"]]
    if trial["state"] == "complete":
        told = " · ".join(
            f"{name} {value:.6g}"
            for name, value in zip(names, trial["values"], strict=True)
        )
        told += " · on the front" if number in results["front"] else ""
    else:
        told = trial["state"] + (
            f": {trial['reason']}"
            if trial["reason"]
            else f" after {trial['epochs_told']} epochs"
        )
    _line(console, f"trial {number}: {params} → {told}")


def _line(console: Console, text: str) -> None:
    from tersify.cli import printable

    console.print(printable(text), highlight=False, markup=False, soft_wrap=True)
