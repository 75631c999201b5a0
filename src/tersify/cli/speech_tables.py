"""The speech network's results for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_speech(console: Console, results: Mapping[str, Any]) -> None:
    """A table for each head, published beside ours."""
    from tersify.lab.networks.speech import HEADS

    for head in HEADS:
        console.print(_table(head, results))


def _table(head: str, results: Mapping[str, Any]) -> Table:
    from rich.table import Table

    table = Table(
        title=f"{head} head, {results['mixtures']} test mixtures",
        caption="difference: paired, ± its standard error; weights as the paper counts them (codes alone)",
    )
    for heading in (
        "network",
        "paper",
        "loss",
        "STOI",
        "− unquantized",
        "− 4-NU",
        "SNR dB",
        "paper bytes",
        "weights",
        "tables",
        "biases",
        "file",
    ):
        table.add_column(heading, justify="left" if heading == "network" else "right")
    mixed = results["mix"]
    table.add_row(
        "mixture",
        f"{mixed['published']:.2f}",
        "",
        f"{mixed['stoi']:.4f}",
        "",
        "",
        f"{mixed['snr_db']:.2f}",
    )
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
            *(
                _number(row.get(key), ",")
                for key in ("weight_bytes", "table_bytes", "bias_bytes", "file_bytes")
            ),
        )
    above = results[head]["float"]["minus"]["mix"]
    table.caption = f"{table.caption}\nunquantized − mixture: {_difference(above)}"
    return table


def _number(value: Any, form: str) -> str:
    return "" if value is None else format(value, form)


def _difference(entry: dict[str, float] | None) -> str:
    return (
        "" if entry is None else f"{entry['mean']:+.4f} ± {entry['standard_error']:.4f}"
    )
