"""What a figure was before it was measured again, out of the records' history in git.

    python results/reruns.py --before COMMIT

writes results/reruns.json: for every record that changed since that commit, each number
that both versions hold, then and now. The page of records shows a line for each record.
A change of code that promises the same results and the same speed is judged by it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
RECORD = HERE / "reruns.json"
# What is counted, not measured.
NO_FIGURES = ("rounds", "seeds", "epochs", "best_epoch")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", required=True, help="the commit to compare with")
    before = parser.parse_args().before
    records = {
        path.stem: compared
        for path in sorted(HERE.glob("*.json"))
        if path != RECORD
        if (compared := rerun(path, before))
    }
    found = {"name": "reruns", "before": before, "records": records}
    RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def rerun(path: Path, before: str) -> dict[str, list[float]]:
    """Each figure of the record then and now, where it is another number."""
    place = f"{before}:results/{path.name}"
    old = subprocess.run(["git", "show", place], capture_output=True, cwd=HERE)
    # A record that is younger than the commit has no figures from before.
    then = figures_of(json.loads(old.stdout)) if old.returncode == 0 else {}
    now = figures_of(json.loads(path.read_text(encoding="utf-8")))
    return {
        name: [then[name], value]
        for name, value in now.items()
        if name in then and then[name] != value
    } | own_comparison(now)


def own_comparison(figures: dict[str, float]) -> dict[str, list[float]]:
    """A benchmark that timed two versions of the code in turns holds both itself."""
    return {
        name.replace("before_", ""): [value, figures[name.replace("before", "now")]]
        for name, value in figures.items()
        if ".before_" in name and name.replace("before", "now") in figures
    }


def figures_of(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a record by their names; those of experiments are their rows'."""
    rows = {
        f"{row['id']}.{name}": entry["mean"]
        for row in record.get("rows", [])
        if isinstance(row, dict) and isinstance(row.get("ours"), dict)
        for name, entry in row["ours"].items()
        if isinstance(entry, dict) and "mean" in entry
    }
    every = record.get("figures", {}) | rows
    return {
        name: float(value)
        for name, value in every.items()
        if isinstance(value, int | float) and name.split(".")[-1] not in NO_FIGURES
    }


def table() -> str:
    """One line for each record that was measured again, and one for each accuracy."""
    found = json.loads(RECORD.read_text(encoding="utf-8"))["records"]
    lines = [
        "| record | what | before | now | now / before |",
        "|---|---|---|---|---|",
    ]
    for record, figures in found.items():
        for name, (then, now) in figures.items():
            if then and shown(name):
                lines.append(
                    f"| `{record}` | {name} | {then:.4g} | {now:.4g} | {now / then:.3f} |"
                )
        ratios = [now / then for then, now in figures.values() if then]
        lines.append(
            f"| `{record}` | all {len(ratios)} that changed, median (least, most) | | "
            f"| {median(ratios):.3f} ({min(ratios):.3f}, {max(ratios):.3f}) |"
        )
    return "\n".join(lines)


def shown(name: str) -> bool:
    """Accuracies, and times on the clock of a comparison that was made in turns."""
    return name.endswith((".accuracy", ".wall_ms", "_overhead_percent"))


TABLES = {"reruns": table}

if __name__ == "__main__":
    main()
