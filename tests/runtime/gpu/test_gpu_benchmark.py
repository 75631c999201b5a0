"""`tersify bench --device cuda`: peers in turn, their errors, and one sentence without
a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from tersify.runtime.gpu.benchmark import bench_on_gpu


def test_every_peer_is_timed_in_every_round_with_its_error() -> None:
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))

    def stopwatch(works: Sequence[Callable[[], object]]) -> float:
        for work in works:
            work()
        return 500.0

    errors: dict[str, float] = {}
    peers = ("torch", "torch-bf16", "tersify")
    rows = bench_on_gpu(
        model,
        torch.randn(4, 16),
        peers=peers,
        batches=(1, 4),
        rounds=3,
        errors=errors,
        device="cpu",
        stopwatch=stopwatch,
    )
    assert [(row.peer, row.batch, row.median_ms, len(row.times)) for row in rows] == [
        (peer, batch, 0.5, 3) for peer in peers for batch in (1, 4)
    ]
    assert errors["torch"] < 1e-5 < errors["torch-bf16"] < 0.1
    assert errors["tersify"] < 1e-5


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_sentence_says_so() -> None:
    with pytest.raises(ValueError, match="there is none"):
        bench_on_gpu(nn.Linear(4, 4), torch.randn(1, 4))
