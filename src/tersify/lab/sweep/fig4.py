"""Paper 1, Fig. 4 as a sweep; its smoke version goes through both engines and compares
what they give.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from tersify.lab.experiments.registry import Request, Watch
from tersify.lab.sweep.sweep_file import Sweep
from tersify.lab.sweep.trials import ENGINES, SweepDisplay, check_any_complete, sweep
from tersify.report import write_report

NAME = "ternary-fig4"
PUBLISHED = "Paper 1, Fig. 4: log regimes reach about 93.5 % accuracy at close to 90 % zeros and about 0.6 bit a weight"


def load(*, smoke: bool, **overrides: Any) -> Sweep:
    name = f"{NAME}-smoke" if smoke else NAME
    text = (
        files("tersify.lab.sweep").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    )
    chosen = Sweep.from_toml(name, text)
    given = {key: value for key, value in overrides.items() if value is not None}
    return replace(chosen, train={**chosen.train, **given})


def run(request: Request, watch: Watch) -> tuple[dict[str, Any], list[Path]]:
    """For the registry: all engines' results, which must be the same, and a report of
    each.
    """
    found = reproduce_fig4(
        request.out,
        smoke=request.smoke,
        resume=request.resume,
        data_root=request.data_root,
        display=watch.sweep,
        **request.settings,
    )
    for engine, results in found.items():
        check_any_complete(results)
        if not same_trials(found[ENGINES[0]], results):
            raise ValueError(
                f"engine {engine!r} gave other trials than this process; compare the two sweep.json"
            )
    return {"engines": found, "published": PUBLISHED}, [
        write_report([request.out / engine]) for engine in found
    ]


def reproduce_fig4(
    out: Path,
    *,
    smoke: bool,
    resume: bool = False,
    data_root: Path | None = None,
    display: SweepDisplay | None = None,
    **overrides: Any,
) -> dict[str, dict[str, Any]]:
    """The results by engine: in this process and, in a smoke run, by Ray on this
    machine too.
    """
    chosen = load(smoke=smoke, **overrides)
    engines = ENGINES if smoke else ENGINES[:1]
    return {
        engine: sweep(
            chosen,
            out / engine,
            engine=engine,
            data_root=data_root,
            display=display,
            resume=resume and (out / engine).exists(),
        )
        for engine in engines
    }


def same_trials(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two sweeps tried the same and measured the same, to the last bit."""
    told = [
        [(t["number"], t["state"], t["params"], t["values"]) for t in each["trials"]]
        for each in (one, other)
    ]
    return told[0] == told[1] and one["front"] == other["front"]
