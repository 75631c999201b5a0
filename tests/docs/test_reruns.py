"""Figures that were measured again stand beside what they were."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def reruns(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "results")
    return importlib.import_module("reruns")


def test_rows_and_figures_of_a_record_are_numbers_by_name_and_counts_are_left_out(
    reruns,
):
    record = {
        "figures": {"a.b1.wall_ms": 2, "rounds": 5, "isa": "avx2"},
        "rows": [
            {"id": "log", "ours": {"accuracy": {"mean": 90.0}, "epochs": {"mean": 3}}}
        ],
    }
    assert reruns.figures_of(record) == {"a.b1.wall_ms": 2.0, "log.accuracy": 90.0}


def test_a_benchmark_that_timed_both_versions_is_compared_with_itself(reruns):
    figures = {"int8.b1.before_wall_ms": 2.0, "int8.b1.now_wall_ms": 3.0, "other": 1.0}
    assert reruns.own_comparison(figures) == {"int8.b1.wall_ms": [2.0, 3.0]}


def test_every_figure_of_a_rerun_is_the_one_its_record_has_now(reruns):
    found = json.loads(reruns.RECORD.read_text(encoding="utf-8"))["records"]
    assert found
    for record, figures in found.items():
        text = (ROOT / "results" / f"{record}.json").read_text(encoding="utf-8")
        now = reruns.figures_of(json.loads(text))
        held = now | {
            name: pair[1] for name, pair in reruns.own_comparison(now).items()
        }
        assert {name: pair[1] for name, pair in figures.items()} == {
            name: held[name] for name in figures
        }, f"results/{record}.json was measured again; run `python results/reruns.py`"
