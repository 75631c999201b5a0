"""The commands through `main`, as a shell calls them, in one process because importing
torch takes seconds.
"""

import json

import pytest

import tersify
from tersify.cli import main

RECIPE = """
[[rules]]
methods = [{ method = "ternary", regime = "linear", delta0 = 0.1, speed = 0.5, cap = 0.9 }]
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    home = tmp_path_factory.mktemp("run")
    (home / "mine.toml").write_text(RECIPE)
    command = "compress digits-cnn --data digits --epochs 2 --dense-twin --device cpu --option width=0.5"
    flags = "--set batch_size=64 --set augmentation={cutout=2} --lr 0.01 --tensorboard"
    places = ["--recipe", str(home / "mine.toml"), "--out", str(home / "digits")]
    assert main([*command.split(), *flags.split(), *places]) == 0
    return home / "digits"


def test_compress_leaves_a_whole_run_directory(run):
    assert {p.name for p in run.iterdir()} == {
        "model.terse",
        "metrics.json",
        "history.jsonl",
        "recipe.toml",
        "latents.json",
        "report.html",
        "checkpoint",
        "dense-twin",
        "tensorboard",
    }
    metrics = json.loads((run / "metrics.json").read_text())
    wanted = [
        "accuracy",
        "top3",
        "top5",
        "accuracy_best",
        "best_epoch",
        "sparsity",
        "entropy_bits",
        "file_bytes",
    ]
    wanted += ["dense_bytes", "train_seconds", "dense_accuracy"]
    assert all(isinstance(metrics[key], (int, float)) for key in wanted)
    assert metrics["file_bytes"] == (run / "model.terse").stat().st_size
    assert metrics["accuracy"] <= metrics["accuracy_best"]
    twin = json.loads((run / "dense-twin" / "metrics.json").read_text())
    assert metrics["dense_accuracy"] == twin["accuracy"]


def test_the_history_has_a_row_for_each_epoch_with_the_session_s_figures(run):
    rows = [
        json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()
    ]
    assert [row["epoch"] for row in rows] == [1, 2]
    assert rows[0]["Δ"] < rows[1]["Δ"]
    assert {
        "loss",
        "train_accuracy",
        "accuracy",
        "top3",
        "top5",
        "lr",
        "sparsity",
        "entropy_bits",
        "seconds",
    } <= set(rows[0])


def test_the_latents_of_every_compressed_weight_are_counted_in_the_same_bins(run):
    histograms = json.loads((run / "latents.json").read_text())
    sizes = {
        name: t.numel()
        for name, t in tersify.open(run / "model.terse").read().compressed().items()
    }
    assert {name: sum(h["counts"]) for name, h in histograms.items()} == sizes
    assert len({tuple(h["edges"]) for h in histograms.values()}) == 1
    assert not (run / "dense-twin" / "latents.json").exists()


def test_the_page_of_a_run_shows_it_beside_its_dense_twin(run):
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "points against the dense twin" in page
    assert 'id="run0-latents"' in page


def test_the_recipe_in_the_directory_is_the_one_that_ran(run):
    assert tersify.Recipe.load(run / "recipe.toml") == tersify.Recipe.from_toml(RECIPE)


def test_eval_needs_only_the_file_and_agrees_with_the_metrics(run, capsys):
    assert (
        main(
            [
                "eval",
                str(run / "model.terse"),
                "--data",
                "digits",
                "--device",
                "cpu",
                "--json",
            ]
        )
        == 0
    )
    figures = json.loads(capsys.readouterr().out)
    metrics = json.loads((run / "metrics.json").read_text())
    assert {key: figures[key] for key in ("accuracy", "top3", "top5")} == {
        key: metrics[key] for key in ("accuracy", "top3", "top5")
    }


def test_inspect_lists_every_tensor_as_a_table_and_as_json(run, capsys):
    assert main(["inspect", str(run / "model.terse"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    metrics = json.loads((run / "metrics.json").read_text())
    assert facts["file_bytes"] == metrics["file_bytes"]
    assert facts["sparsity"] == pytest.approx(metrics["sparsity"])
    assert facts["metadata"]["target"]["name"] == "digits-cnn"
    assert main(["inspect", str(run / "model.terse")]) == 0
    printed = capsys.readouterr().out
    assert all(row["name"] in printed for row in facts["tensors"])


@pytest.mark.parametrize("command", ["inspect", "eval --data digits", "bench"])
def test_a_run_s_directory_is_answered_with_the_file_in_it(run, command, capsys):
    verb, *flags = command.split()
    assert main([verb, str(run), *flags]) == 2
    assert f"its network is {run / 'model.terse'}" in capsys.readouterr().err


def test_tensorboard_gets_its_file_on_request(run):
    assert len(list((run / "tensorboard").glob("events.*"))) == 1


def test_compress_starts_from_given_weights(run, tmp_path, capsys):
    common = [
        "digits-cnn",
        "--data",
        "digits",
        "--option",
        "width=0.5",
        "--device",
        "cpu",
        "--epochs",
        "1",
    ]
    weights = str(run / "dense-twin" / "model.terse")
    tuned = [
        "compress",
        *common,
        "--recipe",
        "none",
        "--weights",
        weights,
        "--lr",
        "1e-6",
        "--out",
        str(tmp_path / "a"),
    ]
    assert main(tuned) == 0
    # At this learning rate nothing is learned; from random weights the accuracy would
    # be about 10 %.
    assert json.loads((tmp_path / "a" / "metrics.json").read_text())["accuracy"] > 60
    assert main([*tuned[:-1], str(tmp_path / "b"), "--option", "width=1"]) == 2
    assert "shape" in capsys.readouterr().err


def test_the_demo_prints_both_networks_side_by_side(tmp_path, capsys):
    assert main(["demo", "--quick", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    table = [line for line in printed.splitlines() if line.startswith("│")]
    assert "dense twin" in table[0]
    assert "ternary-log" in table[1]
    assert all("%" in line and "B" in line and " s " in line for line in table)
    assert (tmp_path / "ternary-log" / "model.terse").is_file()
    assert (tmp_path / "report.html").as_uri() in printed
    assert "the best of 2 runs" in (tmp_path / "report.html").read_text(
        encoding="utf-8"
    )


def test_reproduce_prints_published_ours_and_the_difference(tmp_path, capsys):
    rows = ["--row", "ec2t-1", "--row", "log"]
    assert (
        main(
            [
                "reproduce",
                "ternary-table2",
                "--smoke",
                "--out",
                str(tmp_path / "r"),
                *rows,
            ]
        )
        == 0
    )
    results = json.loads((tmp_path / "r" / "results.json").read_text())
    assert [row["id"] for row in results["rows"]] == ["fp20", "ec2t-1", "log"]
    log = results["rows"][-1]
    assert log["published"]["accuracy"] == 93.27
    assert log["difference"]["accuracy"] == pytest.approx(
        log["ours"]["accuracy"]["mean"] - 93.27
    )
    assert {"commit", "machine", "versions", "seeds", "wall_seconds", "figures"} <= set(
        results
    )
    assert "93.27" in capsys.readouterr().out
    assert (
        main(
            [
                "reproduce",
                "ternary-table2",
                "--smoke",
                "--out",
                str(tmp_path / "r"),
                *rows,
            ]
        )
        == 2
    )
    assert "is not empty; add --resume" in capsys.readouterr().err


def test_only_the_figures_that_were_drawn_become_pngs(tmp_path, monkeypatch, capsys):
    from tersify.report import raster

    drawn = []
    monkeypatch.setattr(
        raster,
        "write_png",
        lambda svg: drawn.append(svg.name) or svg.with_suffix(".png"),
    )
    for folder in (tmp_path / "r" / "figures", tmp_path / "figures"):
        folder.mkdir(parents=True)
        (folder / "mine.svg").write_text("somebody's own")
    words = [
        "reproduce",
        "ternary-table2",
        "--smoke",
        "--row",
        "log",
        "--out",
        str(tmp_path / "r"),
        "--resume",
    ]
    assert main([*words, "--device", "cpu", "--png"]) == 0
    assert drawn == ["accuracy-sparsity.svg", "accuracy-entropy.svg"]
    assert "mine" not in capsys.readouterr().out
    drawn.clear()
    assert (
        main(
            [
                "report",
                str(tmp_path / "r"),
                "--figures",
                str(tmp_path / "figures"),
                "--png",
            ]
        )
        == 0
    )
    assert "epochs-accuracy.svg" in drawn
    assert "mine.svg" not in drawn


def test_a_validation_run_lies_beside_the_real_one_not_in_its_place(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    words = [
        "reproduce",
        "sparse-vgg16-mnist",
        "--smoke",
        "--row",
        "dense",
        "--epochs",
        "1",
        "--device",
        "cpu",
    ]
    assert main([*words, "--validate"]) == 0
    assert [home.name for home in (tmp_path / "runs").iterdir()] == [
        "sparse-vgg16-mnist-smoke-validation"
    ]


def test_every_experiment_of_the_package_describes_trainings_that_can_start(tmp_path):
    from tersify.lab.experiments import Experiment, experiments

    assert "ternary-table2" in experiments()
    for name in experiments():
        whole = Experiment.load(name)
        if whole.measure is not None:
            continue
        for experiment in (whole, whole.as_smoke()):
            for row in experiment.rows:
                experiment.job(row, experiment.seeds[0], tmp_path)


def test_version_and_help_answer_without_torch(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"tersify {tersify.__version__}"


WORDS = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

def data():
    words = torch.randint(0, 300, (64, 5), generator=torch.Generator().manual_seed(0))
    samples = TensorDataset(words, words[:, 0] % 2)
    return samples, samples

def net():
    return nn.Sequential(nn.Embedding(300, 16), nn.Flatten(), nn.Linear(80, 2))
"""


@pytest.mark.filterwarnings("ignore:rule .0.weight. names")
@pytest.mark.parametrize("names_it", [False, True])
def test_a_run_says_when_most_of_its_bytes_are_weights_that_no_rule_reached(
    names_it, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.py").write_text(WORDS)
    method = '[[rules]]\nweights = "NAME"\nmethods = [{ method = "twn" }]\n'
    rules = [method.replace("NAME", name) for name in ["0.weight"] * names_it + ["*"]]
    (tmp_path / "mine.toml").write_text("\n".join(rules))
    command = "compress words.py:net --data words.py:data --recipe mine.toml --out run"
    assert main([*command.split(), "--epochs", "1", "--no-dense-twin"]) == 0
    printed = capsys.readouterr().out
    assert ("'0.weight' above all" in printed) != names_it
