"""Many random modules, in chunks that are processes of their own, so that a crash or a
hang is one finding and no end.

python tests/runtime/fuzz_runs.py [N [SEED]]     as `make fuzz-runtime N=10000 SEED=7`
calls it
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PER_MODULE_S = 180  # silence for longer is a hang; a wrong module is cut down meanwhile
CHUNK = 100
BUILDING = "while its steps were drawn"
HERE = Path(__file__).parent


@dataclass
class Found:
    """What became of a number of modules."""

    right: int = 0
    refused: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    calls: int = 0
    refused_calls: int = 0

    @property
    def modules(self) -> int:
        return self.right + self.refused + len(self.wrong)

    def add(self, other: Found) -> None:
        self.right += other.right
        self.refused += other.refused
        self.refusals += other.refusals
        self.wrong += other.wrong
        self.calls += other.calls
        self.refused_calls += other.refused_calls

    def describe(self) -> str:
        fraction = 100 * self.refused / max(1, self.modules)
        calls = 100 * self.refused_calls / max(1, self.calls)
        lines = [
            f"{self.modules} modules: {self.right} right, {self.refused} refused ({fraction:.1f} %), "
            f"{len(self.wrong)} wrong; of {self.calls} calls at some size {calls:.1f} % were refused"
        ]
        lines += [
            f"  {count:5} × {reason}" for reason, count in self.refusals.most_common(8)
        ]
        return "\n".join([*lines, *self.wrong])


def work(first: int, count: int) -> None:
    """In the child: one line before each module, so that the parent knows where a crash
    was, and one after it.
    """
    import torch
    from fuzz_check import Setting, cut_down, tried
    from fuzz_modules import build

    from tersify import _runtime

    torch.set_num_threads(1)
    isas = list(_runtime.isas())
    for seed in range(first, first + count):
        _say(building=seed)
        case = build(seed)
        setting = Setting.drawn(random.Random(seed), isas)
        text = f"{setting}\nweights: {case.weights}\ninputs: {[tuple(x.shape) for x in case.inputs(2, 0)]}\n"
        _say(start=seed, text=text + case.program.text())
        outcome = tried(case, setting)
        if outcome.kind == "wrong":
            case, outcome = cut_down(case, setting)
        facts = {
            "kind": outcome.kind,
            "why": outcome.why,
            "calls": outcome.calls,
            "refused": outcome.refused_calls,
        }
        _say(end=seed, text=text + case.program.text(), **facts)
    _say(done=True)


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def chunk(first: int, count: int) -> Found:
    """Modules of the seeds from `first` on; a child that dies is started again behind
    the seed it died at.
    """
    found = Found()
    seed = first
    while seed < first + count:
        seed = _child(found, seed, first + count - seed) + 1
    return found


def _child(found: Found, first: int, count: int) -> int:
    """Runs one child to its end; returns the last seed it looked at, or a later one
    where nothing is left to do.
    """
    command = [sys.executable, __file__, "--child", str(first), str(count)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env
        ) as child,
    ):
        last = {"start": first - 1, "text": "before its first module"}
        how = ""
        for facts in _said(child):
            if "done" in facts:
                return first + count
            if "hangs" in facts:
                how = "hangs"
            elif "building" in facts:
                last = {"start": facts["building"], "text": BUILDING}
            elif "start" in facts:
                last = facts
            else:
                _note(found, facts)
                last = {
                    "start": facts["end"],
                    "text": "after it was compared\n" + facts["text"],
                }
        how = how or f"ended with {child.wait()}"
        errors.seek(0)
        said = errors.read()[-1500:]
    if last["start"] < first:
        raise RuntimeError(f"the fuzzer itself does not start: {last['text']}\n{said}")
    # While a module is drawn nothing but torch runs.
    if how.startswith("ended with -") and (
        last["text"] == BUILDING or _torch_dies(last["start"])
    ):
        found.refused += 1
        found.refusals["torch itself ends the process"] += 1
        return int(last["start"])
    found.wrong.append(
        f"seed {last['start']}: the process {how}\n{last['text']}\n{said[-600:]}"
    )
    return int(last["start"])


def _torch_dies(seed: int) -> bool:
    """Whether the module alone, without us, ends a process by a signal."""
    command = [sys.executable, __file__, "--torch", str(seed)]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=PER_MODULE_S)
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode < 0


def _said(child: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """The child's lines as they come; a child that says nothing for too long hangs, and
    is ended.
    """
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in child.stdout or ():
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=PER_MODULE_S)
        except queue.Empty:
            child.kill()
            yield {"hangs": True}
            return
        if not line:
            return
        if line.startswith("{") and line.endswith("}\n"):
            yield json.loads(line)


def _note(found: Found, facts: dict[str, Any]) -> None:
    found.calls += facts["calls"]
    found.refused_calls += facts["refused"]
    if facts["kind"] == "right":
        found.right += 1
    elif facts["kind"] == "refused":
        found.refused += 1
        found.refusals[facts["why"][:110]] += 1
    else:
        found.wrong.append(f"seed {facts['end']}: {facts['why']}\n{facts['text']}\n")


def many(count: int, seed: int, workers: int) -> Found:
    starts = range(seed, seed + count, CHUNK)
    found = Found()
    with ThreadPoolExecutor(workers) as pool:
        for part in pool.map(
            lambda start: chunk(start, min(CHUNK, seed + count - start)), starts
        ):
            found.add(part)
            for text in part.wrong:
                print(text, flush=True)
            print(
                f"{found.modules}/{count}: {len(found.wrong)} wrong, {found.refused} refused",
                flush=True,
            )
    return found


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        work(int(sys.argv[2]), int(sys.argv[3]))
        return
    if sys.argv[1:2] == ["--torch"]:
        from fuzz_check import run_in_torch
        from fuzz_modules import build

        run_in_torch(build(int(sys.argv[2])))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("count", type=int, nargs="?", default=2000)
    parser.add_argument("seed", type=int, nargs="?", default=time.time_ns() % 10**9)
    asked = parser.parse_args()
    print(f"{asked.count} modules from seed {asked.seed}")
    found = many(asked.count, asked.seed, len(os.sched_getaffinity(0)))
    print(found.describe())
    sys.exit(1 if found.wrong else 0)


if __name__ == "__main__":
    main()
