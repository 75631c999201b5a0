"""Two versions of tersify on ResNet-20* with 90 % zeros, in turns: is the one of this
tree as fast as an earlier one?

`python benchmarks/runtime_rebuild.py --before PYTHON [--json FILE] [--rounds N]
[--threads N]`

PYTHON is an interpreter that imports the earlier version. The last one before the
rebuild is commit e355760: `git worktree add ../before e355760`, an environment there with
the same torch, and `pip install --no-deps -e .`. Each version runs in a
process of its own, and one waits while the other is timed; figures are medians over the
rounds, by the clock and in CPU time, which a busy machine changes less. The factor is
the earlier time through the new one.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

from common import report  # first: it sets what must stand before torch is imported

BATCHES, PRECISIONS, CLOCKS = (1, 8, 64), ("fp32", "int8"), ("wall", "cpu")
CHILD = """
import statistics, sys, time
import torch
import tersify
from tersify.lab import network
torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(0)
model = network("resnet20-star")
for parameter in model.parameters():
    if parameter.ndim > 1:
        parameter.data = parameter.data.sign() * (torch.rand_like(parameter) >= 0.9)
model.train()
with torch.no_grad():
    for _ in range(3):
        model(torch.randn(32, 3, 32, 32))
model.eval()
inputs = {batch: torch.randn(batch, 3, 32, 32) for batch in (1, 8, 64)}
fast = {p: tersify.compile(model, inputs[8], precision=p) for p in ("fp32", "int8")}
print("ready", flush=True)
for line in sys.stdin:
    precision, batch = line.split()
    run, x = fast[precision], inputs[int(batch)]
    run(x)
    times = []
    for _ in range(max(2, 24 // int(batch))):
        start, cpu = time.perf_counter(), time.process_time()
        run(x)
        times.append((time.perf_counter() - start, time.process_time() - cpu))
    print(*(1e3 * statistics.median(column) for column in zip(*times)), flush=True)
"""


class Version:
    """A process that times what it is told."""

    def __init__(self, python: str, threads: int) -> None:
        self._child = subprocess.Popen(
            [python, "-c", CHILD, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()  # it is ready

    def milliseconds(self, precision: str, batch: int) -> dict[str, float]:
        assert self._child.stdin is not None
        print(precision, batch, file=self._child.stdin, flush=True)
        return dict(zip(CLOCKS, map(float, self._answer().split()), strict=True))

    def end(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()

    def _answer(self) -> str:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise SystemExit(
                f"{self._child.args[0]} ended early; can it import tersify?"
            )  # type: ignore[index]
        return line


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--before", required=True, help="the interpreter of the earlier version"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    import torch

    versions = {
        "before": Version(asked.before, asked.threads),
        "now": Version(sys.executable, asked.threads),
    }
    figures: dict[str, float] = {"rounds": asked.rounds}
    for precision in PRECISIONS:
        for batch in BATCHES:
            times: dict[str, list[dict[str, float]]] = {name: [] for name in versions}
            for index in range(asked.rounds):
                for name in list(versions)[:: -1 if index % 2 else 1]:
                    times[name].append(versions[name].milliseconds(precision, batch))
            row: dict[str, float] = {}
            for clock in CLOCKS:
                medians = {
                    n: statistics.median(each[clock] for each in values)
                    for n, values in times.items()
                }
                row |= {f"{name}_{clock}_ms": value for name, value in medians.items()}
                row[f"factor_{clock}"] = medians["before"] / medians["now"]
            figures |= {
                f"{precision}.b{batch}.{name}": value for name, value in row.items()
            }
            print(
                precision,
                batch,
                {name: round(value, 3) for name, value in row.items()},
                flush=True,
            )
    for version in versions.values():
        version.end()
    report(
        "runtime-rebuild",
        figures,
        json_path=asked.json,
        versions={"torch": torch.__version__},
        threads=asked.threads,
    )


if __name__ == "__main__":
    main()
