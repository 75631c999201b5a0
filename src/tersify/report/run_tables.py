"""The page's tables: the runs side by side, and of one run its layers, file, times,
recipe and provenance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tersify.report.figures import dense_accuracy
from tersify.report.html_tables import Cell, table
from tersify.report.number_text import (
    bits,
    count,
    duration,
    percent,
    points,
    short,
    size,
    times,
)
from tersify.report.run_files import Run, is_number
from tersify.report.run_graphics import (
    file_parts,
    layers,
    speed_beside_peers,
    speed_rows,
)
from tersify.report.svg import SERIES, clean


def _number(value: float | None, text: str, fraction: float | None = None) -> Cell:
    return Cell(text, value, fraction)


def runs_table(runs: Sequence[Run]) -> str:
    heads = [
        "run",
        "network",
        "data",
        "accuracy",
        "best (epoch)",
        "against dense",
        "zeros",
        "entropy, bits",
        "on disk",
        "smaller",
        "bits / weight",
        "ms",
        "faster",
        "epochs",
        "training",
    ]
    rows = []
    for index, run in enumerate(runs):
        accuracy, dense = run.figure("accuracy"), dense_accuracy(run, runs)
        difference = (
            accuracy - dense if accuracy is not None and dense is not None else None
        )
        epochs = run.figure("epochs") or run.figure("epoch")
        best, at = run.figure("accuracy_best"), run.figure("best_epoch")
        # A run that is not finished has no total yet, only its epochs.
        seconds = run.figure("train_seconds") or sum(run.column("seconds")[1]) or None
        rows.append(
            [
                Cell(
                    run.name + ("" if run.is_finished else " (not finished)"),
                    swatch=index % SERIES,
                ),
                Cell(run.network),
                Cell(run.data),
                _number(accuracy, percent(accuracy)),
                _number(
                    best, percent(best) + (f" ({at:.0f})" if at is not None else "")
                ),
                _number(difference, points(difference)),
                _number(run.figure("sparsity"), percent(run.figure("sparsity"))),
                _number(run.figure("entropy_bits"), bits(run.figure("entropy_bits"))),
                _number(run.figure("file_bytes"), size(run.figure("file_bytes"))),
                _number(run.times_smaller, times(run.times_smaller)),
                _number(run.file_bits_per_weight, bits(run.file_bits_per_weight)),
                *_speed(run),
                _number(epochs, count(epochs)),
                _number(seconds, duration(seconds)),
            ]
        )
    kept = [i for i, head in enumerate(heads) if _is_shown(head, [r[i] for r in rows])]
    return table(
        "The runs", [heads[i] for i in kept], [[row[i] for i in kept] for row in rows]
    )


def _is_shown(head: str, column: Sequence[Cell]) -> bool:
    """Whether a column of the runs' table tells anything."""
    texts = {cell.text for cell in column}
    # The header names the network and the data; the table repeats them only where they
    # differ.
    if head in ("network", "data") and len(texts) == 1:
        return False
    return bool(texts - {"", "–"})


def _speed(run: Run) -> tuple[Cell, Cell]:
    found = speed_beside_peers(run)
    if found is None:
        return Cell("–"), Cell("–")
    return _number(found.milliseconds, f"{found.milliseconds:.2f}"), _number(
        found.factor, times(found.factor)
    )


def layer_table(run: Run) -> str:
    rows = layers(run)
    if not rows:
        return ""
    timed = any("ms" in row for row in rows)
    packed = any("sparsity" in row for row in rows)
    heads = [
        "layer",
        "shape",
        "weights",
        *(["zeros", "entropy, bits"] if packed else []),
        "bytes",
        *(["ms"] if timed else []),
    ]
    # The longest bar of each column; `or 1` for a column of zeros.
    most = {
        key: max((row[key] for row in rows if key in row), default=0) or 1
        for key in ("weights", "bytes", "entropy_bits", "ms")
    }

    def cell(row: dict[str, Any], key: str, text: Any, top: float) -> Cell:
        value = row.get(key)
        return Cell("–") if value is None else Cell(text(value), value, value / top)

    body = []
    for row in rows:
        cells = [
            Cell(row["name"]),
            Cell("×".join(map(str, row["shape"]))),
            cell(row, "weights", count, most["weights"]),
        ]
        if packed:
            cells += [
                cell(row, "sparsity", percent, 100),
                cell(row, "entropy_bits", bits, most["entropy_bits"]),
            ]
        cells.append(cell(row, "bytes", count, most["bytes"]))
        body.append([*cells, cell(row, "ms", short, most["ms"])] if timed else cells)
    return table("Layers", heads, body)


def file_table(run: Run) -> str:
    rows = file_parts(run)
    if not rows:
        return ""
    total = sum(row["bytes"] for row in rows) or 1
    body = [
        [
            Cell(row["part"]),
            Cell(row["coder"]),
            _number(row["elements"], count(row["elements"])),
            _number(row["bytes"], count(row["bytes"]), row["bytes"] / total),
            _number(*_bits_per_weight(row)),
        ]
        for row in rows
    ]
    return table(
        "Parts of the file", ["part", "coder", "elements", "bytes", "bits each"], body
    )


def _bits_per_weight(row: dict[str, Any]) -> tuple[float | None, str]:
    value = 8 * row["bytes"] / row["elements"] if row["elements"] else None
    return value, bits(value)


def speed_table(run: Run) -> str:
    rows = speed_rows(run)
    if not rows:
        return ""
    heads = ["engine", "batch", "threads", "median, ms", "best, ms", "spread, ms"]
    keys = ("batch", "threads", "median_ms", "best_ms", "spread_ms")
    body = [
        [
            Cell(str(row["peer"])),
            *(
                _number(value, short(value)) if is_number(value) else Cell("–")
                for value in map(row.get, keys)
            ),
        ]
        for row in rows
    ]
    return table("Times", heads, body)


def recipe_and_provenance(run: Run) -> str:
    facts = run.contents.facts if run.contents else {}
    where = {
        "directory": run.path.name,
        **_flat(run.metadata),
        **_flat(facts.get("provenance")),
        **_flat(run.bench.get("machine"), "bench "),
        **_flat(run.identity.get("train")),
    }
    recipe = run.recipe.strip() or str(facts.get("recipe") or "").strip()
    shown = (
        f'<div class="code"><button type="button" class="copy" aria-label="Copy the recipe">Copy</button>'
        f"<b>recipe.toml</b><pre>{clean(recipe)}</pre></div>"
        if recipe
        else '<p class="about">No recipe.</p>'
    )
    told = [[Cell(key), Cell(value)] for key, value in where.items() if value]
    settings = table("Settings and provenance", ["what", "value"], told)
    return f'<div class="pair"><div>{shown}</div><div>{settings}</div></div>'


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    """A nested table as lines of text; what is unset is left out."""
    if not isinstance(value, dict):
        return {}
    lines: dict[str, str] = {}
    for key, entry in value.items():
        if isinstance(entry, dict):
            lines |= _flat(entry, f"{prefix}{key} ")
        elif entry is not False and entry not in (None, "", []):
            lines[f"{prefix}{key}"] = (
                ", ".join(map(str, entry)) if isinstance(entry, list) else str(entry)
            )
    return lines
