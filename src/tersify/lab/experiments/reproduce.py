"""`reproduce`: run every row and seed of an experiment, resumably, and sum the figures
up.
"""

from __future__ import annotations

import importlib
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tersify.lab.experiments.experiment_file import Experiment, Row, run_path
from tersify.lab.experiments.provenance import provenance
from tersify.lab.results import write_results
from tersify.lab.trainer import Display, RunDirectory


def reproduce(
    experiment: Experiment,
    out: Path,
    *,
    resume: bool = False,
    data_root: Path | None = None,
    display: Callable[[str], Display] = lambda label: Display(),
    **overrides: Any,
) -> dict[str, Any]:
    """Runs into `out/ROW/seed-N`; `overrides` are training settings for every row
    (device, compile, epochs).

    The results, also written to `out/results.json` after each row, hold for each row
    the published figures, ours with every seed and their spread, and the difference of
    the means.
    """
    if out.exists() and any(out.iterdir()) and not resume:
        raise ValueError(
            f"{out} is not empty; add --resume to go on with what is in it, or give another --out"
        )
    rows: list[dict[str, Any]] = []
    results: dict[str, Any] = {}
    for row in experiment.rows:
        runs: list[Mapping[str, float]] = []
        for seed in experiment.seeds_of(row):
            home = run_path(out, row.id, seed)
            if experiment.measure is not None:
                runs.append(
                    _measured(
                        experiment, row, seed, home, data_root=data_root, **overrides
                    )
                )
                continue
            job = replace(
                experiment.job(row, seed, out, **overrides), data_root=data_root
            )
            runs.append(
                job.run(
                    home, resume=resume, display=display(f"{row.name}, seed {seed}")
                )
            )
        # Written after every row, since the next one may take a day and the machine may
        # stop.
        rows.append(summary(row, runs))
        results = _results(experiment, rows)
        write_results(out / "results.json", results)
    return results


def _measured(
    experiment: Experiment,
    row: Row,
    seed: int,
    home: Path,
    *,
    data_root: Path | None,
    **overrides: Any,
) -> dict[str, float]:
    """The figures of a row that is no training run, from its folder where they are
    there already.
    """
    kept = RunDirectory(home).metrics
    if kept.is_file():
        return json.loads(kept.read_bytes())
    assert experiment.measure is not None
    module, _, name = experiment.measure.partition(":")
    function = getattr(importlib.import_module(module), name)
    home.mkdir(parents=True, exist_ok=True)
    given = {key: value for key, value in overrides.items() if value is not None}
    figures = dict(
        function(
            row,
            seed=seed,
            out=home,
            smoke=experiment.is_smoke,
            data_root=data_root,
            **given,
        )
    )
    RunDirectory(home).write_metrics(figures)
    return figures


def summary(row: Row, runs: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Mean, spread and every seed of each figure, beside what was published."""
    ours = {}
    for metric in dict.fromkeys(key for run in runs for key in run):
        values = [run[metric] for run in runs if metric in run]
        if values:
            # One seed has no spread; 0 would claim certainty.
            spread = statistics.stdev(values) if len(values) > 1 else None
            ours[metric] = {
                "mean": statistics.fmean(values),
                "std": spread,
                "seeds": values,
            }
    published = dict(row.published)
    difference = {
        metric: ours[metric]["mean"] - value
        for metric, value in published.items()
        # A published range has no single difference.
        if metric in ours and not isinstance(value, (list, tuple))
    }
    return {
        "id": row.id,
        "name": row.name,
        "published": published,
        "published_spread": dict(row.published_spread),
        "ours": ours,
        "difference": difference,
    }


def _results(experiment: Experiment, rows: list[dict[str, Any]]) -> dict[str, Any]:
    figures = {
        f"{row['id']}.{metric}": entry["mean"]
        for row in rows
        for metric, entry in row["ours"].items()
    }
    return {
        "name": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "data": f"{experiment.data} (validation)"
        if experiment.validate
        else experiment.data,
        "smoke": experiment.is_smoke,
        "seeds": list(experiment.seeds),
        "columns": dict(experiment.columns),
        "wall_seconds": sum(
            sum(row["ours"]["train_seconds"]["seeds"])
            for row in rows
            if "train_seconds" in row["ours"]
        ),
        **provenance(),
        "rows": rows,
        "figures": figures,
    }
