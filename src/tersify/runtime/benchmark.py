"""A network timed against other engines: each in a process of its own, in turn, in
repeated rounds.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tersify.checks import check_threads
from tersify.modes import eval_mode
from tersify.runtime import peers
from tersify.runtime.inputs import check_runs
from tersify.runtime.peer_files import write_models

# Peers that want an environment of their own, and the variable that names its
# interpreter.
OWN_PYTHON = {
    "deepsparse": "TERSIFY_DEEPSPARSE_PYTHON",
    peers.LLAMA: "TERSIFY_LLAMA_PYTHON",
}


@dataclass(kw_only=True)
class BenchRow:
    """Times of one engine at one batch size, in milliseconds over all rounds; `missing`
    says why there are none.
    """

    peer: str
    batch: int
    threads: int
    times: list[float] = field(default_factory=list, repr=False)
    # of the whole process, a call's mean by round
    cpu_times: list[float] = field(default_factory=list, repr=False)
    round_medians: list[float] = field(default_factory=list, repr=False)
    missing: str = ""

    @property
    def median_ms(self) -> float:
        """Of the rounds' medians: a round that a neighbour disturbed counts as one,
        however few its calls.
        """
        return statistics.median(self.round_medians)

    @property
    def cpu_ms(self) -> float:
        return statistics.median(self.cpu_times)

    @property
    def best_ms(self) -> float:
        return min(self.times)

    @property
    def spread_ms(self) -> float:
        """The distance of the quartiles."""
        if len(self.times) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.times, n=4)
        return high - low


def speedup(ours: BenchRow, theirs: BenchRow) -> float:
    """How many times faster ours is: the median over the rounds, in each of which both
    were timed.
    """
    pairs = zip(ours.round_medians, theirs.round_medians, strict=True)
    return statistics.median(other / own for own, other in pairs)


class _Worker:
    """A peer's process. It is stopped while others are timed: idle engines may spin for
    work.
    """

    def __init__(self, peer: str, folder: Path, threads: int) -> None:
        python = os.environ.get(OWN_PYTHON.get(peer, ""), sys.executable)
        # OMP_NUM_THREADS holds for engines that read it when they are loaded.
        env = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "NM_DISABLE_ANALYTICS": "True",
        }
        # oneDNN's AMX kernels die where a virtual machine hides CPUID leaf 0x1D.
        env.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
        env["PYTHONPATH"] = (
            os.pathsep.join(p for p in sys.path if p)
            if python == sys.executable
            else ""
        )
        self._log = open(folder / f"{peer}.log", "w")  # noqa: SIM115  (lives as long as the process)
        self._process = subprocess.Popen(
            [python, peers.__file__, peer, str(folder), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=env,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        if process.poll() is not None:
            return {"error": f"its process ended with {process.returncode}"}
        # It was stopped after its last answer.
        process.send_signal(signal.SIGCONT)
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            return {"error": f"its process ended with {process.wait()}"}
        process.send_signal(signal.SIGSTOP)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        # A stopped process ignores SIGTERM until it goes on; SIGKILL ends it at once.
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()


def bench(
    model: nn.Module,
    example: Tensor,
    *,
    peers: Sequence[str] = ("torch", "onnxruntime", "tersify"),
    batches: Sequence[int] = (1, 8, 64),
    threads: int = 2,
    rounds: int = 5,
    seconds: float = 0.3,
    errors: dict[str, float] | None = None,
) -> list[BenchRow]:
    """Time `model` in every peer. `example` holds images for calibration and for the
    errors.

    `errors` is filled with each peer's largest deviation from the float64 result,
    relative to that result's largest value. A peer that is not installed gives rows
    whose `missing` says so.
    """
    check_threads(threads)
    with eval_mode(model):
        check_runs(model, (example[:1],))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(model, example, folder, wanted=peers)
        workers = {peer: _Worker(peer, folder, threads) for peer in peers}
        try:
            rows = {
                (p, b): BenchRow(peer=p, batch=b, threads=threads)
                for p in peers
                for b in batches
            }
            if errors is not None:
                _measure_errors(model, example, folder, workers, batches, errors)
            # Peers take turns within each round, so that a change of the machine's
            # speed hits all of them.
            for _ in range(rounds):
                for batch in batches:
                    for peer, worker in workers.items():
                        row = rows[peer, batch]
                        if row.missing:
                            continue
                        answer = worker.ask(do="time", batch=batch, seconds=seconds)
                        if "ms" in answer:
                            row.round_medians.append(statistics.median(answer["ms"]))
                            row.cpu_times.append(answer["cpu_ms"])
                        row.times.extend(answer.get("ms", ()))
                        row.missing = answer.get("error", "")
            return list(rows.values())
        finally:
            for worker in workers.values():
                worker.close()


def _measure_errors(
    model: nn.Module,
    example: Tensor,
    folder: Path,
    workers: dict[str, _Worker],
    batches: Sequence[int],
    errors: dict[str, float],
) -> None:
    exact = _exact(model, example)
    # In batches of a size that will be timed: every further one would be built for
    # nothing.
    batch = max((b for b in batches if len(example) % b == 0), default=len(example))
    for peer, worker in workers.items():
        if "error" not in worker.ask(do="outputs", batch=batch):
            given = np.load(folder / f"{peer}.npy").astype(np.float64)
            errors[peer] = float(np.abs(given - exact).max() / np.abs(exact).max())


def _exact(model: nn.Module, example: Tensor) -> Any:
    with torch.no_grad():
        # the numbers of words stay
        exact = example.double() if example.is_floating_point() else example
        return copy.deepcopy(model).double()(exact).numpy()
