"""The commands by name. Each lives in its own file and imports what it needs when it
runs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tersify.cli.allocate import allocate
from tersify.cli.bench import bench
from tersify.cli.collect import collect
from tersify.cli.compress import compress
from tersify.cli.compress_lm import compress_lm
from tersify.cli.convert import convert
from tersify.cli.demo import demo
from tersify.cli.enhance import enhance
from tersify.cli.evaluate import evaluate
from tersify.cli.export import export
from tersify.cli.generate import chat, generate
from tersify.cli.inspect import inspect
from tersify.cli.plan import plan
from tersify.cli.report import report
from tersify.cli.reproduce import reproduce
from tersify.cli.serve import serve
from tersify.cli.shrink import shrink
from tersify.cli.squeeze import squeeze
from tersify.cli.sweep import sweep

app = typer.Typer(
    help="Few weights, few bits, small files, fast CPU inference: PyTorch networks made terse.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(allocate)
app.command()(collect)
app.command()(compress)
app.command("compress-lm")(compress_lm)
app.command()(convert)
app.command("eval")(evaluate)
app.command()(demo)
app.command()(enhance)
app.add_typer(export, name="export")
app.command()(generate)
app.command()(inspect)
app.command()(bench)
app.command()(plan)
app.command()(chat)
app.command()(report)
app.command()(reproduce)
app.command()(serve)
app.command()(shrink)
app.command()(squeeze)
app.command()(sweep)


def _version(wanted: bool) -> None:
    if wanted:
        from tersify import __version__

        typer.echo(f"tersify {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    return None
