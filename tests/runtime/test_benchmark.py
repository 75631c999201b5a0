"""The side-by-side timing: peers in processes of their own, missing ones named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tersify.lab import network
from tersify.runtime import BenchRow, bench, speedup
from tersify.runtime.passes import serves_fp16
from tersify.runtime.peers import _times

extension = pytest.importorskip("tersify._runtime")


def test_every_peer_is_timed_and_a_missing_one_is_named(monkeypatch):
    monkeypatch.setenv("TERSIFY_DEEPSPARSE_PYTHON", sys.executable)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    errors: dict[str, float] = {}
    rows = bench(
        model,
        torch.randn(2, 3, 8, 8),
        peers=("torch", "tersify", "deepsparse"),
        batches=(1, 2),
        threads=1,
        rounds=2,
        seconds=0.01,
        errors=errors,
    )
    found = {(row.peer, row.batch): row for row in rows}
    for peer in ("torch", "tersify"):
        for batch in (1, 2):
            row = found[peer, batch]
            assert not row.missing
            assert 0 < row.best_ms <= row.median_ms
            assert len(row.round_medians) == 2
        assert errors[peer] < 1e-5
    assert "deepsparse" in found["deepsparse", 1].missing
    assert speedup(found["tersify", 1], found["torch", 1]) > 0


def test_a_network_of_words_is_timed_even_where_onnx_has_no_operator_for_it():
    pytest.importorskip("onnx")
    model = network(
        "minilm",
        vocabulary=20,
        hidden=8,
        heads=2,
        layers=1,
        intermediate=8,
        positions=8,
    ).eval()
    errors: dict[str, float] = {}
    settings = {"batches": (2,), "threads": 1, "rounds": 1, "seconds": 0.01}
    words = torch.randint(1, 20, (2, 6))
    ours, theirs = bench(
        model, words, peers=("tersify", "onnxruntime"), errors=errors, **settings
    )
    assert not ours.missing
    assert errors["tersify"] < 1e-5
    assert "the network cannot be written as ONNX" in theirs.missing


def test_without_the_package_onnx_the_engines_that_need_its_file_say_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    settings = {"batches": (2,), "threads": 1, "rounds": 1, "seconds": 0.01}
    ours, theirs = bench(
        nn.Linear(4, 3), torch.randn(2, 4), peers=("tersify", "onnxruntime"), **settings
    )
    assert not ours.missing
    assert (
        "cannot be written as ONNX" in theirs.missing
        or "No module named 'onnxruntime'" in theirs.missing
    )


class Branching(nn.Module):
    """The way through depends on values, which torch.export does not follow."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x):
        y = self.layer(x)
        return -y if y.sum().item() > 1e9 else y


def test_a_network_that_cannot_be_handed_over_is_refused_in_one_sentence(capfd):
    with pytest.raises(
        ValueError, match=r"torch\.export, which does not follow Branch"
    ):
        bench(Branching().eval(), torch.randn(2, 8), peers=("torch", "tersify"))
    assert capfd.readouterr() == ("", "")


def test_a_precision_that_the_cpu_lacks_is_missing_and_not_replaced(monkeypatch):
    monkeypatch.delenv("TERSIFY_ISA", raising=False)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()).eval()
    settings = {"batches": (1,), "threads": 1, "rounds": 1, "seconds": 0.01}
    (row,) = bench(model, torch.randn(2, 3, 8, 8), peers=("tersify-fp16",), **settings)
    served = serves_fp16(extension, extension.isas()[-1])
    assert ("no AVX512-FP16" in row.missing) != served
    assert bool(row.times) == served


def test_the_benchmark_names_its_sections_where_none_is_wanted():
    script = Path(__file__).parents[2] / "benchmarks/cpu_inference.py"
    done = subprocess.run(
        [sys.executable, script, "--only", "nothing"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "'linear4096.z33.t2'" in done.stderr


def test_speedup_is_the_median_of_the_rounds():
    ours = BenchRow(peer="a", batch=1, threads=1, round_medians=[1.0, 2.0, 4.0])
    theirs = BenchRow(peer="b", batch=1, threads=1, round_medians=[3.0, 4.0, 40.0])
    assert speedup(ours, theirs) == 3.0


def test_the_first_call_makes_ready_and_is_not_timed():
    calls = []
    answer = _times(lambda images: calls.append(images), "images", seconds=0.0)
    assert len(calls) == len(answer["ms"]) + 1 == 3
