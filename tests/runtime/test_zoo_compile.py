"""The benchmark over the zoo: what it counts, what it keeps, and a child that dies."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))
import zoo_compile

RIGHT = {
    "kind": "right",
    "why": "",
    "error": 1e-6,
    "kernels": 3,
    "torch_calls": 1,
    "sent_back": ("a kernel",),
    "share_1": 0.5,
    "share_5": 1.2,
}


def test_the_summary_counts_outcomes_by_case_and_refusals_by_architecture():
    rows = {
        "a.dense": zoo_compile.figures_of(RIGHT),
        "a.pruned": zoo_compile.figures_of({"kind": "wrong", "why": "", "error": 0.0}),
        "b.dense": zoo_compile.figures_of({"kind": "refused", "why": "so"}),
        "c.dense": zoo_compile.figures_of({"kind": "other error", "why": "so"}),
    }
    found = zoo_compile.summary(rows)
    assert (found["architectures"], found["cases"], found["right"]) == (3, 4, 1)
    assert (found["silent_errors"], found["refused"], found["failed"]) == (1, 1, 1)
    assert found["compile_percent"] == pytest.approx(100 / 3)
    assert (found["timed"], found["slower_than_eager_by_5_percent"]) == (2, 1)
    assert (found["largest_share"], found["with_parts_sent_back"]) == (1.2, 1)


def test_a_record_gives_its_rows_back(tmp_path):
    rows = {"a.dense": zoo_compile.figures_of(RIGHT)}
    figures = zoo_compile.summary(rows)
    figures |= {f"a.dense.{name}": value for name, value in rows["a.dense"].items()}
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"figures": figures}))
    assert zoo_compile.rows_of(path) == rows
    assert zoo_compile.rows_of(tmp_path / "none.json") == {}


@pytest.mark.parametrize(
    ("does", "kind"),
    [
        (lambda name, weights: os.kill(os.getpid(), signal.SIGKILL), "crash"),
        (lambda name, weights: 1 / 0, "other error"),
        (lambda name, weights: {"kind": "refused", "why": name}, "refused"),
    ],
)
def test_whatever_a_child_does_is_a_row(monkeypatch, does, kind):
    monkeypatch.setattr(zoo_compile, "measured", does)
    found = zoo_compile.in_a_process("net", "dense")
    assert found["kind"] == kind
    assert kind in zoo_compile.described("net", "dense", found)
