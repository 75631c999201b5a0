"""The zoo compiled: every architecture against its module, errors for all batches and
sizes, and times for one.

`python benchmarks/zoo_compile.py [--quick] [--json FILE] [--table docs/results/zoo.md]
[--only NAME ...] [--threads N]`

Each network has a process of its own, so that a crash is a row of the table. Times are
medians of interleaved rounds on one item. `--quick` takes every eighth case.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

# first: it sets what must stand before torch is imported
from common import interleaved, report

ROOT = Path(__file__).parent.parent
# the zoo itself lies with the tests
sys.path.insert(0, str(ROOT / "tests" / "runtime"))
LIMIT_S = 600
ROUNDS, REPEATS = 9, 3
FIGURES = ("error", "compiled_ms", "eager_ms", "kernels", "torch_calls")


def measured(name: str, weights: str, threads: int) -> dict[str, Any]:
    """In the child: the comparison, then the times."""
    import torch
    from zoo_check import compiled, trial
    from zoo_networks import EXAMPLE_BATCH, NETWORKS, called, made

    torch.set_num_threads(threads)
    found = asdict(trial(name, weights))
    if found["kind"] in ("right", "size refused"):
        entry, model = NETWORKS[name], made(name, weights)
        fast, _ = compiled(model, entry.inputs(EXAMPLE_BATCH, entry.sizes[0]))
        for batch in (1, EXAMPLE_BATCH):
            inputs = entry.inputs(batch, entry.sizes[0])
            try:
                called(fast, inputs)
                break
            except ValueError:
                # a network that was captured for the batch of the example alone
                continue
        with torch.no_grad():
            works = {
                "compiled": lambda: called(fast, inputs),
                "eager": lambda: called(model, inputs),
            }
            times = interleaved(works, rounds=ROUNDS, repeats=REPEATS, warm=3)
        found |= {
            f"{side}_ms": statistics.median(values) for side, values in times.items()
        }
    return found


def in_a_process(name: str, weights: str, threads: int) -> dict[str, Any]:
    command = [
        sys.executable,
        __file__,
        "--child",
        name,
        weights,
        "--threads",
        str(threads),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"kind": "hangs", "why": f"not done in {LIMIT_S} s"}
    last = done.stdout.strip().splitlines()[-1:] or [""]
    if done.returncode or not last[0].startswith("{"):
        lines = done.stderr.strip().splitlines()[-1:] or [""]
        kind = "crash" if done.returncode < 0 else "other error"
        return {"kind": kind, "why": f"exit {done.returncode}: {lines[0][:200]}"}
    return json.loads(last[0])


def row(name: str, weights: str, found: dict[str, Any]) -> str:
    if found["kind"] != "right" and "compiled_ms" not in found:
        return f"| {name} | {weights} | {found['kind']} | | | | | |"
    ratio = found["eager_ms"] / found["compiled_ms"]
    counts = f"{found['kernels']} / {found['torch_calls']}"
    times = f"{found['compiled_ms']:.2f} | {found['eager_ms']:.2f} | {ratio:.2f}"
    return f"| {name} | {weights} | {found['kind']} | {counts} | {found['error']:.1e} | {times} |"


def summary(rows: dict[tuple[str, str], dict[str, Any]]) -> dict[str, float]:
    kinds = [found["kind"] for found in rows.values()]
    timed = [found for found in rows.values() if "compiled_ms" in found]
    slower = [
        found for found in timed if found["compiled_ms"] > 1.05 * found["eager_ms"]
    ]
    names = {name for name, _ in rows}
    compiled = ("right", "size refused", "wrong")
    refused = {
        name for (name, _), found in rows.items() if found["kind"] not in compiled
    }
    return {
        "architectures": len(names),
        "cases": len(rows),
        "right": kinds.count("right"),
        "silent_errors": kinds.count("wrong"),
        "crashes": kinds.count("crash")
        + kinds.count("hangs")
        + kinds.count("other error"),
        "refused": kinds.count("refused"),
        "size_refused": kinds.count("size refused"),
        "compile_percent": 100 * (len(names) - len(refused)) / max(1, len(names)),
        "with_parts_sent_back": sum(
            bool(found.get("sent_back")) for found in rows.values()
        ),
        "largest_error": max([0.0, *(found["error"] for found in timed)]),
        "slower_than_eager_by_5_percent": len(slower),
    }


INTRODUCTION = """# The zoo

Architectures at small sizes with random weights, compiled in fp32 and compared with torch for batches of 1, 2 and 5 and
for another length or image size where they take one. The error is a share of the largest output. Times are medians on
one item, {threads} threads. Pruned: 90 % zeros; ternary: the rest has one magnitude. Written by
`python benchmarks/zoo_compile.py --json results/zoo-compile.json --table docs/results/zoo.md`.

{architectures:.0f} architectures, {cases:.0f} cases: {right:.0f} right, {silent_errors:.0f} silently wrong,
{refused:.0f} refused, {crashes:.0f} failed; {slower_than_eager_by_5_percent:.0f} more than 5 % slower than eager torch.

| architecture | weights | outcome | kernels / torch calls | largest error | compiled ms | eager ms | factor |
|---|---|---|---|---|---|---|---|
"""


def table(
    rows: dict[tuple[str, str], dict[str, Any]], figures: dict[str, float], threads: int
) -> str:
    lines = [row(name, weights, found) for (name, weights), found in rows.items()]
    return INTRODUCTION.format(threads=threads, **figures) + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--only", nargs="*", help="names of architectures")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(measured(*asked.child, asked.threads)))
        return
    import torch
    from zoo_networks import cases

    wanted = [case for case in cases() if not asked.only or case[0] in asked.only][
        :: 8 if asked.quick else 1
    ]
    rows = {}
    for name, weights in wanted:
        rows[name, weights] = found = in_a_process(name, weights, asked.threads)
        print(row(name, weights, found), found.get("why", "")[:140], flush=True)
    figures = summary(rows)
    for figure, value in figures.items():
        print(f"{figure:35} {value:g}")
    for (name, weights), found in rows.items():
        kept = {key: found[key] for key in FIGURES if key in found}
        figures |= {
            f"{name}_{weights}_{key}": float(value) for key, value in kept.items()
        }
    if asked.table:
        asked.table.write_text(table(rows, summary(rows), asked.threads))
    report(
        "zoo-compile",
        figures,
        json_path=asked.json,
        versions={"torch": torch.__version__},
        threads=asked.threads,
    )


if __name__ == "__main__":
    main()
