"""How long work takes on the GPU: medians over replays of one CUDA graph."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence

import torch

# weights that a measurement reads: several times what any cache holds
STREAMED_BYTES = 256 << 20


def copies_of(size_bytes: int) -> int:
    """How many layers of that size a measurement rotates over, so that none is found in
    the cache.
    """
    return max(2, min(96, -(-STREAMED_BYTES // max(size_bytes, 1))))


def microseconds(
    works: Sequence[Callable[[], object]], *, replays: int = 30, warm: int = 2
) -> float:
    """One work's time: all of them in one graph, one after the other."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for work in works[:2]:
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [work() for work in works]
    for _ in range(warm):
        graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    del kept
    return (
        1e3
        * statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks))
        / len(works)
    )
