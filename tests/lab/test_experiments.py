"""Every experiment of the package runs small on the CPU, draws its figures, and goes on
where it stopped.
"""

import json
from dataclasses import replace

import pytest
import torch

from tersify.lab.experiments import Experiment, draw, experiments, reproduce

TRAINED = [name for name in experiments() if Experiment.load(name).measure is None]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.long
@pytest.mark.parametrize("name", TRAINED)
def test_a_smoke_run_leaves_results_and_figures_and_is_not_trained_again(
    name, tmp_path
):
    experiment = Experiment.load(name).as_smoke()
    results = reproduce(experiment, tmp_path, device="cpu")
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(
        json.dumps(results)
    )
    assert [row["id"] for row in results["rows"]] == [row.id for row in experiment.rows]
    for row in results["rows"]:
        assert len(row["ours"]["accuracy"]["seeds"]) == len(experiment.seeds)
        assert (row["ours"]["accuracy"]["std"] is None) == (len(experiment.seeds) == 1)
    assert {path.stem for path in draw(experiment, tmp_path)} == {
        figure["key"] for figure in experiment.figures
    }
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.terse")}
    assert (
        reproduce(experiment, tmp_path, resume=True, device="cpu")["figures"]
        == results["figures"]
    )
    assert {
        path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.terse")
    } == written


def test_the_growing_threshold_leaves_more_zeros_than_the_fixed_one(tmp_path):
    experiment = Experiment.load("ternary-fig1").as_smoke()
    results = reproduce(experiment, tmp_path, device="cpu")
    zeros = {row["id"]: row["ours"]["sparsity"]["mean"] for row in results["rows"]}
    assert zeros["log"] > zeros["fixed"] + 20
    (drawn,) = [path for path in draw(experiment, tmp_path) if path.stem == "log"]
    assert "−Δ" in drawn.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [n for n in TRAINED if n.startswith("ternary")])
def test_the_thresholds_of_paper_1_grow_as_it_prints_them(name):
    experiment = Experiment.load(name)
    methods = [
        method
        for row in (*experiment.rows, *experiment.as_smoke().rows)
        if (recipe := row.load_recipe()) is not None
        for method in recipe.methods
        if method.name == "ternary"
    ]
    assert methods
    assert all(method.floor == 0 for method in methods)


MEASURED = """
title = "Rows that are no training"
source = "nobody"
data = "digits"
seeds = [3, 4]
measure = "experiment_rows:halves"

[columns]
half = "half of it"

[smoke]
seeds = [3]

[[rows]]
id = "a"
name = "a"
options = { whole = 10 }
published = { half = 4.0 }

[[figures]]
key = "halves"
kind = "bars"
title = "Halves"
y = "half"
"""


def test_a_row_may_be_measured_by_a_function_which_is_called_once_a_seed(
    tmp_path, monkeypatch
):
    (tmp_path / "experiment_rows.py").write_text(
        "calls = []\n"
        "def halves(row, *, seed, out, smoke, data_root, **overrides):\n"
        "    calls.append((seed, out.is_dir(), smoke, overrides))\n"
        "    return {'half': row.options['whole'] / 2 + seed}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    experiment = Experiment.from_toml("measured", MEASURED)
    results = reproduce(experiment, tmp_path / "out", device="cpu", epochs=None)
    (row,) = results["rows"]
    assert row["ours"]["half"] == {
        "mean": 8.5,
        "std": pytest.approx(0.5**0.5),
        "seeds": [8.0, 9.0],
    }
    assert row["difference"] == {"half": 4.5}
    assert draw(experiment, tmp_path / "out") == [
        tmp_path / "out" / "figures" / "halves.svg"
    ]
    reproduce(experiment, tmp_path / "out", resume=True)
    import experiment_rows

    assert experiment_rows.calls == [
        (3, True, False, {"device": "cpu"}),
        (4, True, False, {"device": "cpu"}),
    ]


def test_only_the_rows_that_were_asked_for_and_those_they_use_are_run():
    chosen = Experiment.load("ternary-table2").chosen(["best"], [7])
    assert [row.id for row in chosen.rows] == ["fp", "best"]
    assert chosen.seeds == (7,)


def test_a_student_learns_from_its_teacher_s_network_of_the_same_seed(tmp_path):
    experiment = Experiment.load("ternary-table2")
    student = next(row for row in experiment.rows if row.id == "best")
    job = experiment.job(student, 2, tmp_path)
    assert job.config.teacher == str(tmp_path / "fp" / "seed-2" / "model.terse")


def test_a_row_must_stand_behind_the_rows_it_uses():
    text = MEASURED.replace('id = "a"', 'id = "a"\nteacher = "b"')
    with pytest.raises(
        ValueError,
        match="row 'a' uses the network of 'b', which must be a row before it",
    ):
        Experiment.from_toml("measured", text)


def test_figures_of_an_experiment_without_runs_are_left_out(tmp_path):
    assert draw(Experiment.load("ternary-fig1"), tmp_path) == []


def test_a_validation_run_measures_on_training_data_and_says_so(tmp_path):
    chosen = replace(
        Experiment.load("sparse-vgg16-mnist").as_smoke().chosen(["dense"], [1]),
        validate=True,
    )
    results = reproduce(chosen, tmp_path / "validation", device="cpu", epochs=1)
    assert results["data"] == "digits (validation)"
    identity = json.loads(
        (
            tmp_path / "validation" / "dense" / "seed-1" / "checkpoint" / "run.json"
        ).read_text()
    )
    assert identity["data"] == "digits (validation)"
    with pytest.raises(
        ValueError, match="--validate is for experiments that train their rows"
    ):
        replace(Experiment.load("energy-time"), validate=True)
