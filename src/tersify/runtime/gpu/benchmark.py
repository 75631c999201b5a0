"""A network timed on the GPU beside torch: each as one CUDA graph, in turn, in repeated
rounds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tersify.modes import eval_mode, without_tf32
from tersify.runtime.benchmark import BenchRow
from tersify.runtime.compiling import compile as compile_network
from tersify.runtime.gpu.timing import microseconds
from tersify.runtime.inputs import check_runs

PEERS = ("torch", "torch-bf16", "tersify", "tersify-bf16", "tersify-int8")


def bench_on_gpu(
    model: nn.Module,
    example: Tensor,
    *,
    peers: Sequence[str] = PEERS,
    batches: Sequence[int] = (1, 8),
    rounds: int = 5,
    errors: dict[str, float] | None = None,
    device: str = "cuda",
    stopwatch: Callable[[Sequence[Callable[[], object]]], float] = microseconds,
) -> list[BenchRow]:
    """Milliseconds of a call inside a graph, without what Python adds. `errors` is
    filled with each peer's largest deviation from the float64 result, of that result's
    largest number.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "--device cuda needs a GPU that torch can use, and there is none; leave the option out"
        )
    images = example.to(device)
    model = copy.deepcopy(model).eval().to(device)
    with torch.no_grad(), eval_mode(model):
        check_runs(model, (images[:1],))
        exact = copy.deepcopy(model).double()(_as(images, torch.float64))
        rows = [
            BenchRow(peer=peer, batch=batch, threads=1)
            for peer in peers
            for batch in batches
        ]
        runs: dict[tuple[str, int], Callable[[Tensor], Any]] = {}
        for row in rows:
            try:
                runs[row.peer, row.batch] = _run_of(
                    row.peer, model, images[: row.batch]
                )
                if errors is not None and row.peer not in errors:
                    apart = runs[row.peer, row.batch](images).double() - exact
                    errors[row.peer] = float(apart.abs().max() / exact.abs().max())
            except (RuntimeError, ValueError) as problem:
                # a type that an operation of the network lacks
                row.missing = str(problem).partition("\n")[0]
        for _ in range(rounds):
            for row in rows:
                if not row.missing:
                    _time(
                        row, runs[row.peer, row.batch], images[: row.batch], stopwatch
                    )
    return rows


def _run_of(peer: str, model: nn.Module, images: Tensor) -> Callable[[Tensor], Any]:
    engine, _, precision = peer.partition("-")
    if engine == "tersify":
        return compile_network(model, images, precision=precision or "fp32")
    if not precision:
        return model
    halved = copy.deepcopy(model).to(torch.bfloat16)
    return lambda x: halved(_as(x, torch.bfloat16))


def _time(
    row: BenchRow,
    run: Callable[[Tensor], Any],
    images: Tensor,
    stopwatch: Callable[[Sequence[Callable[[], object]]], float],
) -> None:
    try:
        with without_tf32():
            row.times.append(1e-3 * stopwatch([lambda: run(images)]))
        row.round_medians.append(row.times[-1])
    except RuntimeError as problem:
        # a forward that waits for the GPU cannot be part of a graph
        row.missing = str(problem).partition("\n")[0]


def _as(images: Tensor, dtype: torch.dtype) -> Tensor:
    # the numbers of words stay
    return images.to(dtype) if images.is_floating_point() else images
