"""Timing: every backend takes its turns, the winner is the fastest, a wrong result is
an error.
"""

import sys

import pytest
import torch
from sparse_nets import pruned
from torch import nn

import tersify
from tersify.sparse import BACKENDS, backend_times
from tersify.sparse.backends import MissingBackendError, Prepared


@pytest.fixture
def collection(tmp_path):
    return tersify.collect(
        pruned(nn.Linear(32, 16)), torch.randn(8, 32), out=tmp_path / "c", name="net"
    )


def test_every_backend_is_timed_and_the_winner_is_the_fastest(collection):
    threads = torch.get_num_threads()
    timings = collection.bench(["torch-csr", "scipy-csr", "tersify"], rounds=2)
    assert [t.backend for t in timings] == [
        "torch",
        "torch-csr",
        "scipy-csr",
        "tersify",
    ]
    (winner,) = backend_times.winners(timings).values()
    fastest = min(timings, key=lambda t: t.seconds)
    assert winner["backend"] == fastest.backend
    assert winner["speedup"] == timings[0].seconds / fastest.seconds
    work = 2 * collection[0].weight.nnz * 8
    assert all(t.gflops == pytest.approx(work / t.seconds / 1e9) for t in timings)
    assert timings[0].weight_bytes == 4 * 32 * 16
    assert all(t.weight_bytes > 0 and t.best_seconds <= t.seconds for t in timings)
    assert torch.get_num_threads() == threads


def test_a_backend_that_errs_is_not_timed(collection, monkeypatch):
    monkeypatch.setitem(
        BACKENDS, "wrong", lambda op: Prepared(lambda: op.output + 1, 1)
    )
    with pytest.raises(ValueError, match="wrong differs from the stored output"):
        collection.bench(["wrong"], rounds=1)


def test_a_missing_library_is_named_when_asked_for_and_left_out_otherwise(
    collection, monkeypatch
):
    monkeypatch.setitem(sys.modules, "sparse", None)
    with pytest.raises(
        MissingBackendError,
        match=r"needs the package sparse; pip install 'tersify\[sparse\]'",
    ):
        collection.bench(["pydata"], rounds=1)
    monkeypatch.setattr(
        backend_times,
        "BACKENDS",
        {name: BACKENDS[name] for name in ("torch", "pydata")},
    )
    assert [t.backend for t in collection.bench(rounds=1)] == ["torch"]


def test_rounds_and_threads_must_be_positive(collection):
    with pytest.raises(
        ValueError, match="rounds must be a whole number of at least 1, got 0"
    ):
        collection.bench(rounds=0)
