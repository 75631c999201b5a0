"""Sweeps: the space, the samplers, the pruners, the front, and what goes wrong."""

import json
import math

import pytest
from sweep_files import read_results, sweep_text, write_sweep

from tersify.cli import main
from tersify.lab.sweep import Sweep, SweepDisplay, sweep
from tersify.lab.sweep.fig4 import same_trials
from tersify.report import write_report


def make(**changes):
    return Sweep.from_toml("mine", sweep_text(**changes))


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        (
            {"space": '"train.lrr" = { log = [1e-3, 1e-1] }'},
            ["'train.lrr'", "'train.lr'"],
        ),
        ({"space": '"ternary.capp" = [0.5]'}, ["'ternary.capp'", "'ternary.cap'"]),
        (
            {"space": '"twn.factor" = [0.5]'},
            ["'twn.factor'", "unknown field of the space"],
        ),
        ({"space": ""}, ["empty space"]),
        (
            {"space": '"train.lr" = { log = [0.0, 1.0] }'},
            ["must start above 0, got 0.0"],
        ),
        (
            {"space": '"train.lr" = { uniform = [1.0, 0.5] }'},
            ["low < high, got [1.0, 0.5]"],
        ),
        (
            {"space": '"train.lr" = { uniform = [0.1, 0.5], log = [0.1, 0.5] }'},
            ["needs one of", "uniform, log"],
        ),
        ({"space": '"train.lr" = []'}, ["'train.lr' needs a list of values, got []"]),
        ({"space": '"train.lr" = [0.1, 0.1]'}, ["names a choice twice"]),
        (
            {"space": '"train.optimizer" = ["adamm"]'},
            ["no value of 'train.optimizer' works", "adamm"],
        ),
        ({"objectives": '["acuracy"]'}, ["'acuracy'", "'accuracy'"]),
        ({"objectives": "[]"}, ["no objectives"]),
        ({"pruner": "median"}, ["pruner 'median' judges one figure"]),
        (
            {"sampler": "anneal"},
            ["sampler must be one of tpe, nsga2, grid, random, got 'anneal'"],
        ),
        ({"sampler": "grid"}, ["needs points = N"]),
        ({"trials": 0}, ["trials must be a whole number of at least 1, got 0"]),
    ],
)
def test_a_bad_sweep_is_one_sentence_exit_2_and_writes_nothing(
    changes, wanted, tmp_path, capsys
):
    assert (
        main(
            [
                "sweep",
                str(write_sweep(tmp_path, **changes)),
                "--out",
                str(tmp_path / "out"),
            ]
        )
        == 2
    )
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    for part in wanted:
        assert part in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("target", "5", "target must be text, got 5"),
        ("data", "7", "data must be text, got 7"),
        ("recipe", "3", "recipe must be text, got 3"),
        ("title", "3", "title must be text, got 3"),
        ("objectives", "5", "objectives must be a list of text, got 5"),
        ("objectives", "[1]", "objectives must be a list of text, got [1]"),
        ("objectives", '[["a"]]', "objectives must be a list of text, got [['a']]"),
        ("rules", "[1]", "rules must be tables [[rules]], got [1]"),
        ("rules", '"x"', "rules must be tables [[rules]], got 'x'"),
        ("subset", "-1", "subset must be a whole number of at least 1, got -1"),
        ("subset", '"a"', "subset must be a whole number of at least 1, got 'a'"),
        (
            "resources",
            "{ gpus = nan }",
            "resources: gpus must be a number from 0 on, got nan",
        ),
        (
            "resources",
            "{ gpus = inf }",
            "resources: gpus must be a number from 0 on, got inf",
        ),
        ("target", '"no_such.py:net"', "'no_such.py', which does not exist"),
        ("target", '"digits-cnm"', "nearest: 'digits-cnn'"),
        ("options", "{ classes = 3 }", "give the option classes=10"),
        ("data", '"digitz"', "unknown data set 'digitz'"),
        ("options", "{ widht = 2 }", "nearest: 'width'"),
    ],
)
def test_a_value_of_another_kind_or_without_a_meaning_is_told_before_any_trial(
    key, value, wanted, tmp_path, capsys
):
    kept = [
        line for line in sweep_text().splitlines() if not line.startswith(f"{key} = ")
    ]
    (tmp_path / "mine.toml").write_text("\n".join([f"{key} = {value}", *kept]))
    assert (
        main(["sweep", str(tmp_path / "mine.toml"), "--out", str(tmp_path / "out")])
        == 2
    )
    captured = capsys.readouterr()
    assert len(captured.err.strip().splitlines()) == 1
    assert wanted in captured.err
    assert captured.out == ""
    assert not (tmp_path / "out").exists()


def test_the_points_of_a_grid_belong_to_the_sweep_and_their_absence_changes_nothing():
    few, many = (
        make(
            sampler="grid", space=f'"train.lr" = {{ log = [1e-3, 1e-1], points = {n} }}'
        )
        for n in (2, 3)
    )
    assert few.identity() != many.identity()
    assert make().identity()["space"]["train.lr"] == {
        "kind": "log",
        "low": 1e-3,
        "high": 1e-1,
    }


def sweep_of_own_network(folder, source, *, space, trials):
    """A sweep over a network of the user's, whose source stands beside it."""
    (folder / "net.py").write_text(source)
    text = sweep_text(space=space, sampler="grid", trials=trials).replace(
        "options = { width = 0.25 }\n", ""
    )
    text = text.replace('"digits-cnn"', '"net.py:Net"').replace(
        'recipe = "ternary-fixed"', 'recipe = "twn"'
    )
    (folder / "mine.toml").write_text(text)
    return ["sweep", str(folder / "mine.toml"), "--out", str(folder / "out")]


def test_a_sweep_in_which_every_trial_failed_says_why_and_is_no_success(
    tmp_path, capsys
):
    source = (
        "import torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(64, 10)\n"
        "    def forward(self, x):\n"
        "        if self.training:\n"
        "            raise RuntimeError('out of luck')\n"
        "        return super().forward(x.flatten(1))\n"
    )
    sweep = sweep_of_own_network(
        tmp_path, source, space='"train.lr" = [1e-3, 1e-2]', trials=2
    )
    assert main(sweep) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert "all 2 trials failed, the first with RuntimeError: out of luck" in error
    assert [t["state"] for t in read_results(tmp_path / "out")["trials"]] == [
        "failed"
    ] * 2


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (["--storage", "postgresql://nobody@127.0.0.1:1/none"], ["cannot be reached"]),
        (
            ["--storage", "nonsense"],
            ["the storage nonsense cannot be reached", "sqlite:///FILE"],
        ),
        (["--engine", "slurm"], ["engine must be one of local, ray, got 'slurm'"]),
        (["--address", "10.0.0.1:6379"], ["add --engine ray"]),
    ],
)
def test_an_unreachable_place_is_one_sentence_and_exit_2(
    flags, wanted, tmp_path, capsys
):
    assert (
        main(
            [
                "sweep",
                str(write_sweep(tmp_path)),
                "--out",
                str(tmp_path / "out"),
                *flags,
            ]
        )
        == 2
    )
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert all(part in error for part in wanted), error


def test_a_trial_that_crashes_or_gives_nan_fails_and_the_sweep_goes_on(
    tmp_path, capsys
):
    source = (
        "import torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self, kind):\n"
        "        super().__init__(64, 10)\n"
        "        self.kind = kind\n"
        "    def forward(self, x):\n"
        "        if self.kind == 'crash' and self.training:\n"
        "            raise RuntimeError('out of luck')\n"
        "        return super().forward(x.flatten(1)) * (float('nan') if self.kind == 'nan' else 1.0)\n"
    )
    sweep = sweep_of_own_network(
        tmp_path, source, space='"options.kind" = ["good", "crash", "nan"]', trials=3
    )
    assert main(sweep) == 0
    trials = {
        t["params"]["options.kind"]: t for t in read_results(tmp_path / "out")["trials"]
    }
    assert {kind: t["state"] for kind, t in trials.items()} == {
        "good": "complete",
        "crash": "failed",
        "nan": "failed",
    }
    assert "RuntimeError: out of luck" in trials["crash"]["reason"]
    assert "nan" in trials["nan"]["reason"]
    told = capsys.readouterr().out
    assert "failed: RuntimeError: out of luck" in told


def test_values_that_do_not_go_together_are_a_failed_trial(tmp_path):
    space = '"ternary.delta0" = [0.1, 0.9]\n"ternary.cap" = [0.5, 0.95]'
    results = sweep(make(space=space, sampler="grid"), tmp_path / "out")
    failed = [t for t in results["trials"] if t["state"] == "failed"]
    assert len(results["trials"]) == 4
    assert [t["params"] for t in failed] == [
        {"ternary.delta0": 0.9, "ternary.cap": 0.5}
    ]
    assert "cap (Δf) must be at least delta0" in failed[0]["reason"]


@pytest.mark.parametrize("sampler", ["tpe", "nsga2"])
def test_a_sweep_stopped_after_each_trial_has_the_trials_of_an_unbroken_one(
    sampler, tmp_path
):
    chosen = make(sampler=sampler, trials=4)
    whole = sweep(chosen, tmp_path / "whole")

    class StopError(Exception):
        pass

    class StopAtOnce(SweepDisplay):
        def trial_done(self, results, number):
            raise StopError

    for _ in range(4):
        with pytest.raises(StopError):
            sweep(chosen, tmp_path / "broken", resume=True, display=StopAtOnce())
    broken = sweep(chosen, tmp_path / "broken", resume=True)
    assert same_trials(whole, broken)


def test_a_trial_interrupted_in_mid_training_is_finished_with_its_own_parameters(
    tmp_path, monkeypatch
):
    chosen = make(trials=3, epochs=2)
    whole = sweep(chosen, tmp_path / "whole")
    epochs = []

    def interrupt(self, row):
        epochs.append(row["epoch"])
        if len(epochs) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tersify.lab.sweep.trial._Reporting.epoch_done", interrupt)
        with pytest.raises(KeyboardInterrupt):
            sweep(chosen, tmp_path / "broken")
    assert [t["state"] for t in read_results(tmp_path / "broken")["trials"]] == [
        "complete"
    ]
    assert same_trials(whole, sweep(chosen, tmp_path / "broken", resume=True))


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_a_pruner_stops_trials_on_what_epochs_tell(pruner, tmp_path):
    space = '"ternary.delta0" = { uniform = [0.02, 0.3] }'
    results = sweep(
        make(pruner=pruner, objectives='"sparsity"', epochs=4, trials=12, space=space),
        tmp_path / "out",
    )
    states = [t["state"] for t in results["trials"]]
    assert "pruned" in states
    assert "complete" in states
    assert all(
        t["epochs_told"] < 4 for t in results["trials"] if t["state"] == "pruned"
    )
    assert len(results["front"]) == 1


def test_every_objective_is_measured_and_the_front_holds_no_beaten_trial(tmp_path):
    names = ["accuracy", "sparsity", "entropy_bits", "file_bytes", "latency_ms"]
    results = sweep(make(objectives=json.dumps(names), trials=4), tmp_path / "out")
    for trial in results["trials"]:
        assert len(trial["values"]) == 5
        assert all(math.isfinite(value) and value >= 0 for value in trial["values"])
    signs = [1 if o["direction"] == "maximize" else -1 for o in results["objectives"]]
    gains = [
        [s * v for s, v in zip(signs, t["values"], strict=True)]
        for t in results["trials"]
    ]
    for number in results["front"]:
        assert not any(
            all(a >= b for a, b in zip(other, gains[number], strict=True))
            and other != gains[number]
            for other in gains
        )


def test_the_journal_may_lie_elsewhere_and_any_field_may_vary(tmp_path):
    space = """
"train.batch_size" = { int = [20, 50] }
"train.optimizer" = ["adam", "sgd"]
"options.width" = [0.25, 0.5]
"recipe" = ["ternary-fixed", "twn"]
"rules.0.ternary.cap" = { uniform = [0.3, 0.9] }
"""
    storage = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    results = sweep(make(space=space, trials=2), tmp_path / "out", storage=storage)
    assert (tmp_path / "elsewhere.db").is_file()
    assert not (tmp_path / "out" / "study.db").exists()
    for trial in results["trials"]:
        run = json.loads(
            (
                tmp_path
                / "out"
                / "trials"
                / f"{trial['number']:04d}"
                / "checkpoint"
                / "run.json"
            ).read_text()
        )
        params = trial["params"]
        assert run["train"]["batch_size"] == params["train.batch_size"]
        assert run["train"]["optimizer"] == params["train.optimizer"]
        assert run["metadata"]["target"]["options"]["width"] == params["options.width"]
        assert ("twn" in run["recipe"]) == (params["recipe"] == "twn")
        if params["recipe"] != "twn":
            assert f"cap = {params['rules.0.ternary.cap']!r}" in run["recipe"]


def test_a_directory_of_another_sweep_is_refused(tmp_path):
    sweep(make(trials=1), tmp_path / "out")
    with pytest.raises(ValueError, match="add --resume"):
        sweep(make(trials=1), tmp_path / "out")
    with pytest.raises(
        ValueError, match="holds another sweep: sampler was 'random', now 'tpe'"
    ):
        sweep(make(trials=1, sampler="tpe"), tmp_path / "out", resume=True)
    assert len(sweep(make(trials=2), tmp_path / "out", resume=True)["trials"]) == 2


def test_the_report_shows_front_coordinates_and_importance(tmp_path):
    sweep(make(trials=9), tmp_path / "out")
    page = write_report([tmp_path / "out"], figures=tmp_path / "figures").read_text()
    for title in (
        "The front",
        "Parallel coordinates",
        "Importance for accuracy",
        "Importance for sparsity",
    ):
        assert title in page
    assert "<h1>0" not in page  # the sweep's name, not a trial's number
    assert {p.stem for p in (tmp_path / "figures").glob("sweep*.svg")} >= {
        "sweep-front-0",
        "sweep-parallel",
    }
