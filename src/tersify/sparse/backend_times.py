"""Every operation on every backend, timed in turns, beside the dense product."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from tersify.checks import check_threads, check_whole
from tersify.sparse.backends import BACKENDS, MissingBackendError, Prepared, prepare
from tersify.sparse.collection import Operation

DENSE = "torch"
MIN_SAMPLE_SECONDS = 0.002


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One operation on one backend: the median of the rounds, and what it reads and
    errs.
    """

    operation: str
    backend: str
    seconds: float
    best_seconds: float
    # of the multiplications and additions with non-zero weights, 2·nnz·N, for every
    # backend
    gflops: float
    weight_bytes: int
    error: float


def bench(
    operations: Iterable[Operation],
    backends: Sequence[str] | None = None,
    *,
    rounds: int = 5,
    threads: int = 1,
) -> list[Timing]:
    """Backends take turns in every round, so that a busy moment of the machine hits all
    of them.

    Without `backends`, all whose library is installed. A result outside the operation's
    tolerance is an error.
    """
    check_whole("rounds", rounds, low=1)
    check_threads(threads)
    wanted = list(dict.fromkeys([DENSE, *(backends or BACKENDS)]))
    timings: list[Timing] = []
    with _threads(threads):
        for op in operations:
            ready = dict(_prepared(op, wanted, must=bool(backends)))
            # Also the warm-up: the first call of a library allocates and chooses its
            # kernels.
            errors = {name: op.check(each.run(), name) for name, each in ready.items()}
            repeats = {name: _repeats(each) for name, each in ready.items()}
            samples: dict[str, list[float]] = {name: [] for name in ready}
            for _ in range(rounds):
                for name, each in ready.items():
                    samples[name].append(_seconds(each, repeats[name]))
            # The same useful work for every backend, dense ones too: figures then
            # compare times, not how many zeros were multiplied.
            work = 2 * op.meta["weight"]["nnz"] * op.shape[1]
            for name, each in ready.items():
                median = statistics.median(samples[name])
                timings.append(
                    Timing(
                        operation=op.name,
                        backend=name,
                        seconds=median,
                        best_seconds=min(samples[name]),
                        gflops=work / median / 1e9,
                        weight_bytes=each.weight_bytes,
                        error=errors[name],
                    )
                )
    return timings


def winners(timings: Iterable[Timing]) -> dict[str, dict[str, Any]]:
    """For each operation the fastest backend, and how many times faster than dense it
    is.
    """
    best: dict[str, Timing] = {}
    dense: dict[str, float] = {}
    for each in timings:
        if each.operation not in best or each.seconds < best[each.operation].seconds:
            best[each.operation] = each
        if each.backend == DENSE:
            dense[each.operation] = each.seconds
    return {
        name: asdict(each) | {"speedup": dense[name] / each.seconds}
        for name, each in best.items()
    }


def _prepared(
    op: Operation, names: Sequence[str], *, must: bool
) -> Iterator[tuple[str, Prepared]]:
    for name in names:
        try:
            yield name, prepare(op, name)
        except MissingBackendError:
            if must:
                raise


def _seconds(each: Prepared, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        each.run()
    return (time.perf_counter() - start) / repeats


def _repeats(each: Prepared) -> int:
    """Enough calls for a sample that the clock can measure."""
    return max(1, min(1000, int(MIN_SAMPLE_SECONDS / max(_seconds(each, 1), 1e-7))))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
