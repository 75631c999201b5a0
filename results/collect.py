"""Runs that were trained side by side or elsewhere become rows of results/EXPERIMENT.json.

    python results/collect.py ternary-table2 log=runs/log best=runs/a best=runs/b --machine "NVIDIA H200" \
        --version torch=2.11.0 --version python=3.12.3 --commit c18452d --command "tersify reproduce ternary-table2"

A row named twice has two seeds. Rows that are not named stay as they are in the file. `make pages` comes next.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from tersify.lab.experiments import Experiment
from tersify.lab.experiments.reproduce import summary
from tersify.lab.names import unknown
from tersify.report.run_graphics import pooled_latents

HERE = Path(__file__).parent
CURVES = ("accuracy", "sparsity", "entropy_bits", "Δ", "kept", "energy")
CURVE_POINTS = 60


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment")
    parser.add_argument("runs", nargs="+", metavar="ROW=DIR")
    parser.add_argument("--machine", required=True)
    parser.add_argument(
        "--version", action="append", default=[], metavar="NAME=VERSION"
    )
    parser.add_argument("--commit", required=True)
    parser.add_argument("--command", required=True, help="what was called there")
    given = parser.parse_args()
    folders: dict[str, list[Path]] = {}
    for pair in given.runs:
        row, _, folder = pair.partition("=")
        folders.setdefault(row, []).append(Path(folder))
    provenance = {
        "command": given.command,
        "machine": given.machine,
        "versions": dict(v.split("=", 1) for v in given.version),
        "commit": given.commit,
    }
    file = HERE / f"{given.experiment}.json"
    before = (
        json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"rows": []}
    )
    results = merged(Experiment.load(given.experiment), before, folders, provenance)
    file.write_text(_text(results) + "\n", encoding="utf-8")


def merged(
    experiment: Experiment,
    before: dict[str, Any],
    folders: dict[str, list[Path]],
    provenance: dict[str, Any],
) -> dict[str, Any]:
    known = {row.id: row for row in experiment.rows}
    rows = {row["id"]: row for row in before["rows"] if row["id"] in known}
    for name, runs in folders.items():
        if name not in known:
            raise unknown(f"row of {experiment.name}", name, known)
        metrics = [json.loads((run / "metrics.json").read_bytes()) for run in runs]
        rows[name] = summary(known[name], metrics) | {
            "seeds": len(runs),
            "recipe": (runs[0] / "recipe.toml").read_text(encoding="utf-8"),
            "settings": _settings(runs[0]),
            "curve": _curve(runs[0]),
            **_latents(runs[0]),
            **provenance,
        }
    return {
        "name": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "data": experiment.data,
        "rows": [rows[name] for name in known if name in rows],
    }


def _text(results: dict[str, Any]) -> str:
    """JSON with each list of numbers on a line of its own."""
    spread = json.dumps(results, indent=1, ensure_ascii=False)
    return re.sub(
        r"\[\s+([-+.\deE,\s]+?)\s+\]",
        lambda found: f"[{' '.join(found[1].split())}]",
        spread,
    )


def _settings(run: Path) -> dict[str, Any]:
    """The identity of the run: network, options, training settings."""
    file = run / "checkpoint" / "run.json"
    if not file.is_file():
        return {}
    identity = json.loads(file.read_bytes())
    train = {
        k: v
        for k, v in identity["train"].items()
        if v is not False and v not in (None, "", [], {})
    }
    train["teacher"] = Path(train["teacher"]).name if "teacher" in train else None
    return {
        "metadata": identity["metadata"],
        "train": {k: v for k, v in train.items() if v is not None},
    }


def _curve(run: Path) -> dict[str, list[float]]:
    """The history at about `CURVE_POINTS` of its epochs, with the last one."""
    rows = [
        json.loads(line)
        for line in (run / "history.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    step = max(1, len(rows) // CURVE_POINTS)
    kept = rows[::-step][::-1]
    curve = {"epoch": [row["epoch"] for row in kept]}
    return curve | {
        key: [round(row[key], 4) for row in kept] for key in CURVES if key in kept[0]
    }


def _latents(run: Path) -> dict[str, Any]:
    """All latents of the run in one histogram, where it has them."""
    file = run / "latents.json"
    pooled = pooled_latents(json.loads(file.read_bytes())) if file.is_file() else None
    return (
        {}
        if pooled is None
        else {
            "latents": {"edges": [round(v, 5) for v in pooled[0]], "counts": pooled[1]}
        }
    )


if __name__ == "__main__":
    main()
