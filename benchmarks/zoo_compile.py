"""The zoo compiled: every architecture against its module, errors for all batches and
sizes, and times for one item and for five.

`python benchmarks/zoo_compile.py [--quick] [--json FILE] [--only NAME ...]`

Each network has a process of its own, so that a crash is a row of the table. Times are
CPU time on one thread, in turns with torch, so that other work on the machine does not
decide. `--quick` takes every eighth case; `--only` measures some again and keeps the
others of the record.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import multiprocessing
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# first: it sets what must stand before torch is imported
from common import interleaved, milliseconds, report

ROOT = Path(__file__).parent.parent
# the zoo itself lies with the tests
sys.path.insert(0, str(ROOT / "tests" / "runtime"))
FORK = multiprocessing.get_context("fork")
LIMIT_S = 900
LEAST_ROUNDS, MOST_ROUNDS = 7, 15
ROUND_MS = 12.0  # of each side in a round: a shorter one is lost in the machine's noise
SIDE_MS = 400.0  # of each side in all rounds, where the most rounds take longer
TIMED_BATCHES = (1, 5)
SLOWER = 1.05
COMPILED = ("right", "size_refused", "wrong")


def measured(name: str, weights: str) -> dict[str, Any]:
    """In the child: the comparison, then the times."""
    import torch
    from zoo_check import compiled, trial
    from zoo_networks import EXAMPLE_BATCH, NETWORKS, made

    torch.set_num_threads(1)
    found = asdict(trial(name, weights))
    if found["kind"] != "right":
        return found
    entry, model = NETWORKS[name], made(name, weights)
    fast, _ = compiled(model, entry.inputs(EXAMPLE_BATCH, entry.sizes[0]))
    with torch.no_grad():
        for batch in TIMED_BATCHES:
            found |= timed(fast, model, entry.inputs(batch, entry.sizes[0]), batch)
    return found


def timed(fast: Any, model: Any, inputs: Any, batch: int) -> dict[str, float]:
    """Medians of both, and of the factor between them in one round."""
    from zoo_networks import called

    works = {
        "compiled": lambda: called(fast, inputs),
        "eager": lambda: called(model, inputs),
    }
    for work in works.values():
        work()  # compiles for this size, and fills caches
    once = milliseconds(works["eager"], 3, time.process_time)
    times = interleaved(
        works,
        rounds=max(LEAST_ROUNDS, min(MOST_ROUNDS, round(SIDE_MS / max(once, 1e-3)))),
        repeats=max(1, round(ROUND_MS / max(once, 1e-3))),
        warm=2,
        clock=time.process_time,
    )
    factors = [
        ours / torchs
        for ours, torchs in zip(times["compiled"], times["eager"], strict=True)
    ]
    found = {
        f"{side}_ms_{batch}": statistics.median(values)
        for side, values in times.items()
    }
    return {**found, f"share_{batch}": statistics.median(factors)}


def answer(sending: Connection, name: str, weights: str) -> None:
    try:
        sending.send(measured(name, weights))
    except Exception as error:
        # any network's own code: whatever it raises is this row's finding
        sending.send({"kind": "other error", "why": f"{type(error).__name__}: {error}"})


def in_a_process(name: str, weights: str) -> dict[str, Any]:
    receiving, sending = FORK.Pipe(duplex=False)
    child = FORK.Process(target=answer, args=(sending, name, weights))
    child.start()
    # The child has its own end; with this one closed, its death ends the wait.
    sending.close()
    try:
        if not receiving.poll(LIMIT_S):
            child.kill()
            return {"kind": "hangs", "why": f"not done in {LIMIT_S} s"}
        found: dict[str, Any] = receiving.recv()
        return found
    except EOFError:
        child.join()
        return {"kind": "crash", "why": f"exit {child.exitcode}"}
    finally:
        child.join()


def described(name: str, weights: str, found: dict[str, Any]) -> str:
    said = f"{name:32} {weights:8} {found['kind']:13}"
    if found["kind"] != "right":
        return f"{said} {found['why'][:160]}"
    counts = f"{found['kernels']:4} / {found['torch_calls']:3}"
    times = " ".join(
        f"{found[f'compiled_ms_{batch}']:9.3f} {found[f'eager_ms_{batch}']:9.3f} ×{found[f'share_{batch}']:.3f}"
        for batch in TIMED_BATCHES
    )
    mark = " SLOW" if shares(found) and max(shares(found)) > SLOWER else ""
    back = f" sent back: {'; '.join(found['sent_back'])}" if found["sent_back"] else ""
    return f"{said} {counts} {found['error']:.1e} {times}{mark}{back}"


def shares(found: dict[str, Any]) -> list[float]:
    """Of torch's time, for each batch that was timed."""
    return [found[f"share_{b}"] for b in TIMED_BATCHES if f"share_{b}" in found]


def figures_of(found: dict[str, Any]) -> dict[str, float]:
    """The outcome as a figure of its own name, and what was measured."""
    kept = {
        key: float(value)
        for key, value in found.items()
        if isinstance(value, (int, float))
    }
    kept["sent_back"] = float(len(found.get("sent_back", ())))
    return {found["kind"].replace(" ", "_"): 1.0, **kept}


def summary(rows: dict[str, dict[str, float]]) -> dict[str, float]:
    """`rows`: the figures of each case, by "NAME.WEIGHTS"."""

    def count(*kinds: str) -> int:
        return sum(any(kind in row for kind in kinds) for row in rows.values())

    every = [share for row in rows.values() for share in shares(row)]
    names = {case.partition(".")[0] for case in rows}
    not_compiled = {
        case.partition(".")[0]
        for case, row in rows.items()
        if not any(kind in row for kind in COMPILED)
    }
    return {
        "architectures": len(names),
        "cases": len(rows),
        "right": count("right"),
        "silent_errors": count("wrong"),
        "failed": count("crash", "hangs", "other_error"),
        "refused": count("refused"),
        "size_refused": count("size_refused"),
        "compile_percent": 100 * (len(names) - len(not_compiled)) / max(1, len(names)),
        "with_parts_sent_back": sum(
            bool(row.get("sent_back")) for row in rows.values()
        ),
        "largest_error": max([0.0, *(row.get("error", 0.0) for row in rows.values())]),
        "timed": len(every),
        "slower_than_eager_by_5_percent": sum(share > SLOWER for share in every),
        "largest_share": max([0.0, *every]),
        "median_share": statistics.median(every or [0.0]),
    }


def rows_of(path: Path | None) -> dict[str, dict[str, float]]:
    """The cases of an earlier record: with --only, those that are not asked for stay."""
    rows: dict[str, dict[str, float]] = {}
    if path is None or not path.exists():
        return rows
    for name, value in json.loads(path.read_text())["figures"].items():
        case, _, figure = name.rpartition(".")
        if case:
            rows.setdefault(case, {})[figure] = value
    return rows


def preload() -> None:
    """Imports that every child would repeat; nothing is computed in this process."""
    from zoo_timm import timm

    with suppress(ImportError):
        timm()
        importlib.import_module("transformers.modeling_utils")
    # Their objects stay; the children need not look at them in every collection.
    gc.freeze()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", help="names of architectures")
    asked = parser.parse_args()
    import torch
    from zoo_networks import cases

    preload()
    wanted = [case for case in cases() if not asked.only or case[0] in asked.only]
    rows = {}
    for name, weights in wanted[:: 8 if asked.quick else 1]:
        found = in_a_process(name, weights)
        print(described(name, weights, found), flush=True)
        rows[f"{name}.{weights}"] = figures_of(found)
    if asked.only:
        rows = rows_of(asked.json) | rows
    figures = summary(rows)
    for figure, value in figures.items():
        print(f"{figure:35} {value:g}")
    for case, row in sorted(rows.items()):
        figures |= {f"{case}.{figure}": value for figure, value in row.items()}
    libraries = {
        library: sys.modules[library].__version__
        for library in ("timm", "transformers")
        if library in sys.modules
    }
    report(
        "zoo-compile",
        figures,
        json_path=asked.json,
        versions={"torch": torch.__version__, **libraries},
        threads=1,
    )


if __name__ == "__main__":
    main()
