"""`reproduce`: train every row and seed of an experiment, resumably, and sum the figures up."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tersify.codec.atomic import replacing
from tersify.lab.experiments.definition import Experiment, Row, run_path
from tersify.lab.experiments.provenance import provenance
from tersify.lab.trainer import Display

METRICS = ("accuracy", "accuracy_best", "best_epoch", "sparsity", "entropy_bits", "file_bytes", "train_seconds")


def reproduce(
    experiment: Experiment,
    out: Path,
    *,
    resume: bool = False,
    data_root: Path | None = None,
    display: Callable[[str], Display] = lambda label: Display(),
    **overrides: Any,
) -> dict[str, Any]:
    """Runs into `out/ROW/seed-N`; `overrides` are training settings for every row (device, compile, epochs).

    The results, also written to `out/results.json` after each row, hold for each row the published figures,
    ours with every seed and their spread, and the difference of the means.
    """
    if out.exists() and any(out.iterdir()) and not resume:
        raise ValueError(f"{out} is not empty; add --resume to go on with what is in it, or give another --out")
    rows: list[dict[str, Any]] = []
    results: dict[str, Any] = {}
    for row in experiment.rows:
        runs = []
        for seed in experiment.seeds:
            job = experiment.job(row, seed, out, **overrides)
            job = replace(job, data_root=data_root)
            label = f"{row.name}, seed {seed}"
            runs.append(job.run(run_path(out, row.id, seed), resume=resume, display=display(label)))
        rows.append(summary(row, runs))
        results = _results(experiment, rows)
        with replacing(out / "results.json") as file:
            file.write((json.dumps(results, indent=2, ensure_ascii=False) + "\n").encode())
    return results


def summary(row: Row, runs: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Mean, spread and every seed of each figure, beside what was published."""
    ours = {}
    for metric in METRICS:
        values = [run[metric] for run in runs if metric in run]
        if values:
            spread = statistics.stdev(values) if len(values) > 1 else None
            ours[metric] = {"mean": statistics.fmean(values), "std": spread, "seeds": values}
    published = dict(row.published)
    difference = {
        metric: ours[metric]["mean"] - value
        for metric, value in published.items()
        if metric in ours and not isinstance(value, (list, tuple))
    }
    return {"id": row.id, "name": row.name, "epochs": int(runs[0]["epochs"]), "published": published, "ours": ours,
            "difference": difference}  # fmt: skip


def _results(experiment: Experiment, rows: list[dict[str, Any]]) -> dict[str, Any]:
    figures = {f"{row['id']}.{metric}": entry["mean"] for row in rows for metric, entry in row["ours"].items()}
    return {
        "name": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "data": experiment.data,
        "smoke": experiment.is_smoke,
        "seeds": list(experiment.seeds),
        "wall_seconds": sum(sum(row["ours"]["train_seconds"]["seeds"]) for row in rows),
        **provenance(),
        "rows": rows,
        "figures": figures,
    }
