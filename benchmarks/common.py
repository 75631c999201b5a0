"""What every benchmark writes: its figures with the machine, the versions and the
commit they belong to.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tersify import Session

# oneDNN's AMX kernels die where a virtual machine hides CPUID leaf 0x1D; set before
# torch is imported.
ONEDNN_ISA = "ONEDNN_MAX_CPU_ISA"
# None: the caller has chosen
ONEDNN_GUARD = None if ONEDNN_ISA in os.environ else "AVX512_CORE_FP16"
os.environ.setdefault(ONEDNN_ISA, ONEDNN_GUARD or "")


def training_step(
    model: nn.Module,
    attach: Callable[[nn.Module], Session] | None,
    optimizer: Callable[[Any], torch.optim.Optimizer],
    *,
    device: str,
    batch: int,
    compiled: bool,
) -> Callable[[], None]:
    """One whole training step as a function, with a session or without: forward,
    backward, optimizer; bf16 on a GPU.
    """
    import torch
    import torch.nn.functional as F

    on_gpu = device == "cuda"
    model = model.to(device)
    images = torch.randn(batch, 3, 32, 32, device=device)
    labels = torch.randint(0, 10, (batch,), device=device)
    if on_gpu:
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    session = attach(model) if attach else None
    moved = optimizer(session.param_groups() if session else model.parameters())
    forward = torch.compile(model) if compiled else model

    def step() -> None:
        if session:
            session.step(images, labels)
        with torch.autocast(device, torch.bfloat16, enabled=on_gpu):
            loss = F.cross_entropy(forward(images), labels)
        if session:
            loss = loss + session.penalty()
        moved.zero_grad(set_to_none=True)
        loss.backward()
        moved.step()

    return step


def milliseconds(
    work: Callable[[], object],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Per call, by that clock; what a GPU was given to do is done before and after."""
    import torch

    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    start = clock()
    for _ in range(repeats):
        work()
    wait()
    return 1e3 * (clock() - start) / repeats


def interleaved(
    works: dict[str, Callable[[], object]],
    *,
    rounds: int,
    repeats: int,
    warm: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Milliseconds of each in every round, so that values of one round can be compared.

    In turns, since a slow minute then hits all of them; forwards and backwards, since
    the first of a round may find a cooler machine. Garbage is collected between rounds:
    what one of them leaves must not be swept in another's time.
    """
    for work in works.values():
        for _ in range(warm):
            work()
    times: dict[str, list[float]] = {name: [] for name in works}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for index in range(rounds):
            gc.collect()
            for name in list(works)[:: -1 if index % 2 else 1]:
                times[name].append(milliseconds(works[name], repeats, clock))
    finally:
        if collecting:
            gc.enable()
    return times


def own_warnings_alone() -> None:
    """Peers warn of what they do with each other; that a kernel left its place to a slower
    one is part of a measurement, and Tersify warns of that with a RuntimeWarning.
    """
    warnings.simplefilter("ignore")
    warnings.simplefilter("always", RuntimeWarning)


def report(
    name: str,
    figures: dict[str, float],
    *,
    json_path: Path | None,
    versions: dict[str, str],
    **machine: Any,
) -> None:
    """Write {"name", "command", "commit", "machine", "versions", "figures"} where a
    path is given.
    """
    if json_path is None:
        return
    from tersify.lab.experiments.provenance import command, commit, cpu_name

    facts = {"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)), **machine}
    versions = {"python": platform.python_version(), **versions}
    here = commit(Path(__file__).parent)
    origin = {
        "name": name,
        "command": command(),
        "commit": here,
        "machine": facts,
        "versions": versions,
    }
    record = origin | {"figures": figures}
    json_path.write_text(json.dumps(record, indent=1) + "\n")
