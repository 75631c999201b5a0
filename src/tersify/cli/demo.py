"""`tersify demo`: the whole story on data that ships with the package."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tersify.cli.common import check_begun, resumable
from tersify.cli.example import show_example


def demo(
    context: typer.Context,
    out: Annotated[
        Path | None, typer.Option(help="Keep the two run directories here.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A few epochs: a trial run, not the result."),
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the demo in --out.")
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Seed of weights, order and augmentation.")
    ] = 0,
) -> None:
    """Train a small network on digits twice, dense and sparse ternary, and compare the
    two files.
    """
    from tersify.cli.terminal_tables import print_metrics, wide_console
    from tersify.lab.trainer import display_for
    from tersify.lab.trainer.demo import run_demo
    from tersify.report import write_report

    if resume and out is None:
        raise ValueError(
            "--resume needs the directory of the demo to go on with; give it with --out"
        )
    console = wide_console()
    with contextlib.ExitStack() as stack:
        home = out or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="tersify-demo-"))
        )
        if resume:
            check_begun(home)
        if out is not None:
            stack.enter_context(resumable(context, out))
        rows = run_demo(
            home,
            seed=seed,
            quick=quick,
            resume=resume,
            display=lambda name: display_for(console, name),
        )
        print_metrics(console, rows)
    dense, terse = rows["dense twin"], rows["ternary-log"]
    console.print(
        f"The ternary file is {dense['file_bytes'] / terse['file_bytes']:.1f} times smaller than the dense one "
        f"and {terse['accuracy'] - dense['accuracy']:+.2f} points of accuracy away from it.",
        highlight=False,
    )
    if out is not None:
        page = write_report([out]).resolve()
        hints = f"tersify eval {out / 'ternary-log' / 'model.terse'} --data digits\nThe page: {page.as_uri()}"
        console.print(hints, highlight=False, markup=False, soft_wrap=True)
    if not quick:
        show_example(console)
