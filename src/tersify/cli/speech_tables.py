"""The speech network's experiments for `tersify reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

SPEECH_EXPERIMENTS = {
    "lut-fig1": "the weights' distribution and the intervals of the range split",
    "lut-table3": "STOI and bytes of the quantized speech network, each head",
    "lut-fig3": "uniform or range split, with and without shift, one layer at a time",
    "lut-fig4": "the same at 4 bits",
}


def reproduce_speech(experiment: str, *, smoke: bool, resume: bool, out: Path | None, data_root: Path | None) -> None:
    """Train each head where it is not there yet, quantize, measure, and print published beside ours.

    Figures use the networks of `lut-table3` where --out is the same.
    """
    from tersify.cli.tables import wide_console
    from tersify.lab.data.roots import data_root as root_of
    from tersify.lab.networks.speech import HEADS
    from tersify.lab.speech.figures import reproduce_figure
    from tersify.lab.speech.table3 import reproduce

    speech = root_of(data_root) / "speech"
    home = out or Path("runs") / (f"{experiment}-smoke" if smoke else experiment)
    if experiment == "lut-fig1":
        from tersify.lab.speech.partitions import reproduce_partitions

        reproduce_partitions(speech, home, smoke=smoke, tell=typer.echo)
        typer.echo(f"{home / experiment}.json")
        return
    if experiment != "lut-table3":
        reproduce_figure(experiment, speech, home, smoke=smoke, tell=typer.echo)
        typer.echo(f"{home / experiment}.html")
        return
    results = reproduce(speech, home, smoke=smoke, resume=resume, tell=typer.echo)
    console = wide_console()
    for head in HEADS:
        console.print(_table(head, results))
    if smoke:
        console.print("A smoke run shows that the path works; its figures mean nothing.", highlight=False)
    console.print(f"{home / 'results.json'}", highlight=False, soft_wrap=True)


def _table(head: str, results: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table(
        title=f"{head} head, {results['mixtures']} test mixtures",
        caption="difference: paired, ± its standard error; weights as the paper counts them (codes alone)",
    )
    for heading in ("network", "paper", "loss", "STOI", "− unquantized", "− 4-NU", "SNR dB", "paper bytes", "weights",
                    "tables", "biases", "file"):  # fmt: skip
        table.add_column(heading, justify="left" if heading == "network" else "right")
    mixed = results["mix"]
    table.add_row("mixture", f"{mixed['published']:.2f}", "", f"{mixed['stoi']:.4f}", "", "", f"{mixed['snr_db']:.2f}")
    for name, row in results[head].items():
        published = row["published"]
        against = row["minus"]
        table.add_row(
            "unquantized" if name == "float" else name,
            _number(published.get("stoi"), ".2f"),
            _number(published.get("loss"), "+.3f"),
            f"{row['stoi']:.4f}",
            _difference(against.get("float")),
            _difference(against.get("4-NU")),
            f"{row['snr_db']:.2f}",
            _number(published.get("bytes"), ","),
            *(_number(row.get(key), ",") for key in ("weight_bytes", "table_bytes", "bias_bytes", "file_bytes")),
        )
    above = results[head]["float"]["minus"]["mix"]
    table.caption = f"{table.caption}\nunquantized − mixture: {_difference(above)}"
    return table


def _number(value: Any, form: str) -> str:
    return "" if value is None else format(value, form)


def _difference(entry: dict[str, float] | None) -> str:
    return "" if entry is None else f"{entry['mean']:+.4f} ± {entry['standard_error']:.4f}"
