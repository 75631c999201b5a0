"""The zoo: what compression is told, how short training goes, and what a second call
keeps.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


def benchmark():
    """benchmarks/zoo.py under another name: tests have a module `zoo` too."""
    spec = importlib.util.spec_from_file_location(
        "zoo_benchmark", ROOT / "benchmarks" / "zoo.py"
    )
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def subject():
    from zoo_entries import Subject, cosine

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    inputs = torch.randn(40, 6)
    return Subject(
        model=model,
        shown=inputs[:20],
        held=inputs[20:],
        measure=cosine,
        unit="cosine, %",
    )


def test_without_labels_the_calibration_moves_every_weight():
    from zoo_training import calibration

    given = subject()
    told = calibration(given)
    for inputs, targets in told.pairs():
        told.loss(given.model(inputs), targets).backward()
    assert all(bool((weight.grad != 0).any()) for weight in given.model.parameters())


def test_the_network_of_the_subject_stays_as_it_is():
    from zoo_training import compressed

    given = subject()
    before = given.model[0].weight.clone()
    model, packed = compressed(given, "lut-4-sensitivity", None)
    assert torch.equal(given.model[0].weight, before)
    assert set(packed.compressed()) == {"0.weight", "2.weight"}
    assert model[0].weight.unique().numel() <= 16


def test_training_brings_a_pruned_network_nearer_to_fp32():
    from zoo_entries import Training
    from zoo_training import compressed

    given, outputs = subject(), benchmark().outputs
    wanted = outputs(given.model, given.held)
    near = []
    for steps in (1, 60):
        model, _ = compressed(
            given, "prune-l1-90", Training(steps=steps, lr=1e-2, batch=16)
        )
        near.append(given.measure(outputs(model, given.held), wanted, None))
        zeros = sum(
            int((tensor == 0).sum()) for tensor in (model[0].weight, model[2].weight)
        )
        assert zeros >= 0.85 * (48 + 32)
    assert near[1] > near[0]


def test_another_network_of_the_record_is_kept(tmp_path):
    zoo = benchmark()
    path = tmp_path / "zoo.json"
    assert zoo.earlier(path) == ({}, {})
    zoo.save({"a.fp32.bytes": 4}, {"a": "c0ffee"}, path)
    figures, commits = zoo.earlier(path)
    assert figures == {"a.fp32.bytes": 4}
    assert commits == {"a": "c0ffee"}
    assert json.loads(path.read_text())["name"] == "zoo"


def test_sizes_of_other_coders_count_every_tensor():
    from peers import coded_sizes
    from zoo_training import compressed

    _, packed = compressed(subject(), "lut-4", None)
    # which no coder can make smaller
    noise = torch.randint(0, 256, (4096,), dtype=torch.uint8)
    alone, more = (
        coded_sizes(dict(packed) | extra, quick=True)
        for extra in ({}, {"noise": noise})
    )
    assert all(more[coder] >= alone[coder] + 4000 for coder in alone)
