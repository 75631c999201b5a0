"""Settings that fit the data and the length of the run, and the dense twin that a run
starts from.
"""

import json
from dataclasses import replace

import pytest
import torch

from tersify.lab.data import dataset
from tersify.lab.experiments import Experiment, experiments
from tersify.lab.trainer import (
    DENSE,
    Display,
    Job,
    RunDirectory,
    TrainConfig,
    fitted,
    run_with_twin,
)
from tersify.lab.trainer.dense_twin import dense_twin, starts_from_twin
from tersify.lab.trainer.loop import Loop
from tersify.lab.trainer.rate import learning_rate
from tersify.lab.trainer.run_directory import START, TWIN
from tersify.recipe import Recipe, ready_recipes
from tersify.report.run_files import find_runs


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("samples", "batch", "epochs"),
    [(100, 16, 60), (1350, 32, 30), (10_000, 128, 16), (60_000, 256, 10)],
)
def test_batch_and_length_come_from_the_number_of_samples(samples, batch, epochs):
    config = fitted({}, samples)
    assert (config.batch_size, config.epochs) == (batch, epochs)


def test_what_is_given_stays_as_it_is():
    config = fitted(
        {"optimizer": "sgd", "lr": 0.1},
        1350,
        lr=0.3,
        batch_size=100,
        epochs=3,
        seed=None,
    )
    assert (config.lr, config.batch_size, config.epochs, config.seed) == (
        0.3,
        100,
        3,
        0,
    )


def test_a_rate_of_sgd_goes_with_the_batch_and_adams_does_not():
    table = {
        "optimizer": "sgd",
        "lr": 0.1,
        "schedule": "multistep",
        "milestones": [5],
        "rates": [0.01],
    }
    small = fitted(table, 1350)
    assert small.lr == pytest.approx(0.1 * (32 / 256) ** 0.5)
    assert small.rates[0] == pytest.approx(0.01 * (32 / 256) ** 0.5)
    assert fitted(table | {"batch_size": 64}, 1350).lr == 0.1
    assert fitted({"optimizer": "adam", "lr": 0.1}, 1350).lr == 0.1


@pytest.mark.parametrize("path", ready_recipes(), ids=lambda p: p.stem)
@pytest.mark.parametrize("epochs", [1, 7, 300])
def test_a_ready_recipe_warms_up_for_a_small_share_of_any_run_and_ends_at_rest(
    path, epochs
):
    config = fitted(Recipe.load(path.stem).train, 1350, epochs=epochs)
    assert learning_rate(config, 0.1 * epochs) > 0.9 * config.lr
    assert learning_rate(config, 0.999 * epochs) < 0.01 * config.lr


@pytest.mark.parametrize("name", experiments())
def test_an_experiment_takes_nothing_from_a_ready_recipe_which_may_change(name):
    assert {row.recipe for row in Experiment.load(name).rows} == {"none"}


def test_an_experiment_measures_with_the_statistics_of_training(tmp_path):
    experiment = Experiment.load("ternary-table2")
    assert not any(
        experiment.job(row, 1, tmp_path).config.recalibrate for row in experiment.rows
    )
    assert TrainConfig(epochs=1).recalibrate


@pytest.mark.parametrize(("cutout", "fits"), [(4, True), (5, False), (16, False)])
def test_a_cutout_of_more_than_half_the_image_is_refused(cutout, fits):
    config = TrainConfig(epochs=1, augmentation={"cutout": cutout}, device="cpu")
    job = Job(target="digits-cnn", data="digits", config=config)
    data = job.load_data()
    if fits:
        Loop(job._model({}), data, config, None)
        return
    with pytest.raises(
        ValueError,
        match=rf"cutout = {cutout} pixels covers more than half .* 8 pixels; set it to 4",
    ):
        Loop(job._model({}), data, config, None)


def job_of(recipe, **settings):
    data = dataset("digits")
    data = replace(data, train=data.train[:200], test=data.test[:100])
    config = fitted(recipe.train, len(data.train), epochs=2, device="cpu", **settings)
    return Job(
        target="digits-cnn",
        data="digits",
        config=config,
        recipe=recipe,
        options={"width": 0.25},
    ), data


def test_a_recipe_that_starts_from_a_trained_network_starts_from_its_dense_twin(
    tmp_path,
):
    job, data = job_of(Recipe.load("lut-4"))
    rows = run_with_twin(job, tmp_path / "run", data=data, label="lut-4")
    assert [*rows] == ["dense twin", "lut-4"]
    assert rows["lut-4"]["dense_accuracy"] == rows["dense twin"]["accuracy"]
    identity = json.loads(RunDirectory(tmp_path / "run").identity.read_text())
    assert identity["metadata"]["weights"]["name"] == "model.terse"
    twin = json.loads(RunDirectory(tmp_path / "run" / TWIN).identity.read_text())
    assert (twin["train"]["lr"], twin["train"]["epochs"], twin["recipe"]) == (
        DENSE["lr"],
        2,
        "",
    )
    before = RunDirectory(tmp_path / "run").model.read_bytes()
    assert (
        run_with_twin(job, tmp_path / "run", data=data, label="lut-4", resume=True)
        == rows
    )
    assert RunDirectory(tmp_path / "run").model.read_bytes() == before


def test_a_recipe_without_a_wanted_twin_says_that_it_trains_its_start_and_shows_no_twin(
    tmp_path,
):
    job, data = job_of(Recipe.load("twn"))
    out, said, shown = tmp_path / "run", [], []

    def display(name):
        shown.append(name)
        return Display()

    def run(**flags):
        return run_with_twin(
            job,
            out,
            data=data,
            label="twn",
            wanted=False,
            display=display,
            tell=said.append,
            **flags,
        )

    rows = run()
    assert [*rows] == ["twn"]
    assert "dense_accuracy" not in rows["twn"]
    assert shown == ["dense start", "twn"]
    assert said == [
        f"twn starts from a trained network, so a dense one is trained first, into {out / START}; "
        "--weights FILE starts from one that you have"
    ]
    assert [run.path for run in find_runs([out])] == [out]
    assert run(resume=True) == rows


def test_a_run_that_stopped_after_its_twin_goes_on_from_it(tmp_path):
    job, data = job_of(Recipe.load("twn"))
    dense_twin(job, data).run(tmp_path / "run" / TWIN, data=data)
    made = RunDirectory(tmp_path / "run" / TWIN).model.stat().st_mtime_ns
    run_with_twin(job, tmp_path / "run", data=data, label="twn", resume=True)
    assert RunDirectory(tmp_path / "run" / TWIN).model.stat().st_mtime_ns == made
    assert RunDirectory(tmp_path / "run").metrics.is_file()


def test_a_recipe_from_scratch_has_a_twin_of_its_own_settings_and_only_where_it_is_wanted(
    tmp_path,
):
    recipe = replace(Recipe.load("twn"), start="scratch", train={"lr": 0.004})
    job, data = job_of(recipe)
    assert dense_twin(job, data).config == job.config
    rows = run_with_twin(job, tmp_path / "run", data=data, label="twn", wanted=False)
    assert [*rows] == ["twn"]
    assert "dense_accuracy" not in rows["twn"]


def test_with_weights_of_ones_own_the_twin_starts_from_them_too(tmp_path):
    job, data = job_of(Recipe.load("twn"))
    start = replace(job, recipe=None)
    start.run(tmp_path / "start", data=data)
    job = replace(job, weights=RunDirectory(tmp_path / "start").model)
    twin = dense_twin(job, data)
    assert (twin.weights, twin.config, twin.recipe) == (job.weights, job.config, None)
    assert [
        *run_with_twin(job, tmp_path / "run", data=data, label="twn", wanted=False)
    ] == ["twn"]


def test_a_target_that_is_trained_already_is_not_trained_from_scratch(tmp_path):
    job, data = job_of(Recipe.load("twn"))
    options = job.network_options(data)
    replace(job, recipe=None, config=fitted(DENSE, 200, epochs=12, device="cpu")).run(
        tmp_path / "start", data=data
    )
    made = f"network('digits-cnn', **{options!r})"
    (tmp_path / "mine.py").write_text(
        "import tersify\nfrom tersify.lab import network\n"
        f"def net():\n    return tersify.load({str(tmp_path / 'start' / 'model.terse')!r}, into={made})\n"
    )
    given = replace(job, target=f"{tmp_path / 'mine.py'}:net", options={})
    assert starts_from_twin(job, data)
    assert not starts_from_twin(given, data)
    assert dense_twin(given, data).config == given.config
