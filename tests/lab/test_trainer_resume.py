import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from killed_run import KillInEpoch, job_of

import tersify
from tersify.lab import network
from tersify.lab.trainer import RunDirectory
from tersify.lab.trainer.checkpoint import read_checkpoint

TERNARY = """
[[rules]]
methods = [{ method = "ternary", regime = "log", delta0 = 0.1, speed = 1.9, cap = 0.97 }]
"""
STOCHASTIC = """
[[rules]]
methods = [{ method = "binary", stochastic = true }]
"""
ACTIVATIONS = """
[[rules]]
methods = [{ method = "twn" }]

[[rules]]
activations = "*"
methods = [{ method = "uniform", range = "observed" }]
"""
SETTINGS = {
    "dense with cosine and momentum": (
        "",
        {"optimizer": "sgd", "lr": 0.05, "schedule": "cosine"},
    ),
    "ternary with adam": (TERNARY, {"lr": 5e-3}),
    "quantized activations": (ACTIVATIONS, {"lr": 5e-3}),
    "stochastic with an average and mixup": (
        STOCHASTIC,
        {"lr": 5e-3, "ema": 0.9, "mixup": 0.5},
    ),
}


def spec_of(name, out):
    recipe, train = SETTINGS[name]
    return {
        "recipe": recipe,
        "train": {"epochs": 4, "batch_size": 30, "device": "cpu", **train},
        "out": str(out),
        "kill_in_epoch": 3,
    }


def run_killed(spec):
    source = Path(tersify.__file__).parent.parent
    threads = str(torch.get_num_threads())
    return subprocess.run(
        [sys.executable, str(Path(__file__).parent / "killed_run.py")],
        input=json.dumps(spec),
        text=True,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": threads},
        timeout=120,
    )


def same_state(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_state(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same_state, a, b))
    return a == b


@pytest.mark.parametrize("name", list(SETTINGS))
def test_killed_in_mid_epoch_and_resumed_gives_the_weights_of_an_unbroken_run(
    name, tmp_path
):
    whole, broken = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "broken")
    spec = spec_of(name, broken.path)
    expected = job_of(spec).run(whole.path)

    killed = run_killed(spec)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not broken.metrics.exists()
    assert len(broken.history.read_text().splitlines()) == 2

    resumed = job_of(spec).run(broken.path, resume=True)
    a, b = read_checkpoint(whole.checkpoint), read_checkpoint(broken.checkpoint)
    for part in ("model", "optimizer", "session", "average"):
        assert same_state(a[part], b[part]), part
    first, second = tersify.open(whole.model).read(), tersify.open(broken.model).read()
    assert same_state(first.state_dict(), second.state_dict())
    assert {k: v for k, v in resumed.items() if k != "train_seconds"} | {
        "file_bytes": 0
    } == {k: v for k, v in expected.items() if k != "train_seconds"} | {"file_bytes": 0}
    assert [
        json.loads(line)["epoch"] for line in broken.history.read_text().splitlines()
    ] == [1, 2, 3, 4]


def test_a_run_whose_checkpoints_are_rare_goes_on_from_the_last_one(tmp_path):
    spec = spec_of("ternary with adam", tmp_path)
    whole, broken = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "broken")
    job_of(spec).run(whole.path)
    with pytest.raises(KeyboardInterrupt):
        job_of(spec).run(broken.path, display=InterruptInEpoch(2))
    with pytest.raises(KeyboardInterrupt):
        job_of(spec).run(
            broken.path,
            resume=True,
            display=InterruptInEpoch(3),
            checkpoint_seconds=1e9,
        )
    # the epochs behind it are done again
    assert read_checkpoint(broken.checkpoint)["epoch"] == 1
    job_of(spec).run(broken.path, resume=True, checkpoint_seconds=1e9)
    a, b = (read_checkpoint(run.checkpoint) for run in (whole, broken))
    assert same_state(a["model"], b["model"])
    assert [row["epoch"] for row in b["history"]] == [1, 2, 3, 4]


def test_two_unbroken_runs_differ_when_the_seed_does(tmp_path):
    spec = spec_of("ternary with adam", tmp_path)
    spec["train"]["epochs"] = 1
    job_of(spec).run(tmp_path / "a")
    spec["train"]["seed"] = 1
    job_of(spec).run(tmp_path / "b")
    a, b = (
        read_checkpoint(RunDirectory(tmp_path / n).checkpoint)["model"] for n in "ab"
    )
    assert not same_state(a, b)


def test_a_finished_run_resumes_to_its_own_figures(tmp_path):
    spec = spec_of("ternary with adam", tmp_path)
    spec["train"]["epochs"] = 1
    first = job_of(spec).run(tmp_path)
    written = (tmp_path / "model.terse").read_bytes()
    assert job_of(spec).run(tmp_path, resume=True) == first
    assert (tmp_path / "model.terse").read_bytes() == written


def test_a_damaged_checkpoint_is_refused_in_one_sentence(tmp_path):
    spec = spec_of("dense with cosine and momentum", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        job_of(spec).run(tmp_path, display=InterruptInEpoch(2))
    (tmp_path / "checkpoint" / "last.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=r"last\.pt is no checkpoint"):
        job_of(spec).run(tmp_path, resume=True)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            {"epoch": 1},
            "is no checkpoint of a training run: it must hold epoch, history",
        ),
        (
            {
                "epoch": 1,
                "history": [],
                "model": {},
                "optimizer": {},
                "session": {},
                "average": {},
            },
            "does not fit",
        ),
    ],
)
def test_a_checkpoint_of_something_else_is_named(content, sentence, tmp_path):
    spec = spec_of("dense with cosine and momentum", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        job_of(spec).run(tmp_path, display=InterruptInEpoch(2))
    torch.save(content, tmp_path / "checkpoint" / "last.pt")
    with pytest.raises(ValueError, match=rf"last\.pt {sentence}"):
        job_of(spec).run(tmp_path, resume=True)


def test_damaged_json_in_a_run_directory_is_named(tmp_path):
    spec = spec_of("dense with cosine and momentum", tmp_path)
    spec["train"]["epochs"] = 1
    job_of(spec).run(tmp_path)
    for name, text in [
        ("metrics.json", "[]"),
        ("metrics.json", "{}"),
        ("metrics.json", "{"),
        ("checkpoint/run.json", "{\xff"),
    ]:
        (tmp_path / name).write_bytes(text.encode("latin-1"))
        with pytest.raises(
            ValueError, match=rf"{name} (is damaged|has no number for 'accuracy')"
        ):
            job_of(spec).run(tmp_path, resume=True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"train": {"lr": 0.1}}, r"train\.lr was 0\.005, now 0\.1"),
        ({"recipe": STOCHASTIC}, "recipe had"),
        ({"train": {"epochs": 9}}, r"train\.epochs was 4, now 9"),
    ],
)
def test_resuming_with_other_settings_is_refused_and_touches_nothing(
    change, sentence, tmp_path
):
    spec = spec_of("ternary with adam", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        job_of(spec).run(tmp_path, display=InterruptInEpoch(2))
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    other = spec | change | {"train": spec["train"] | change.get("train", {})}
    with pytest.raises(ValueError, match=sentence):
        job_of(other).run(tmp_path, resume=True)
    with pytest.raises(ValueError, match="is not empty; add --resume"):
        job_of(spec).run(tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


class InterruptInEpoch(KillInEpoch):
    """Ctrl-C instead of a kill."""

    def batch_done(self):
        self._batches_left -= 1
        if not self._batches_left:
            raise KeyboardInterrupt


def test_a_resume_knows_other_weights_of_the_same_name(tmp_path):
    def job(folder):
        spec = spec_of("dense with cosine and momentum", tmp_path)
        return replace(job_of(spec), weights=tmp_path / folder / "net.pt")

    for folder in "ab":
        (tmp_path / folder).mkdir()
        torch.save(
            network("digits-cnn", width=0.5).state_dict(), tmp_path / folder / "net.pt"
        )
    with pytest.raises(KeyboardInterrupt):
        job("a").run(tmp_path / "run", display=InterruptInEpoch(2))
    with pytest.raises(ValueError, match=r"metadata\.weights\.sha256 was"):
        job("b").run(tmp_path / "run", resume=True)


def test_an_edited_description_of_the_recipe_does_not_stop_a_resume(tmp_path):
    spec = spec_of("ternary with adam", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        job_of(spec).run(tmp_path, display=InterruptInEpoch(4))
    job_of(spec | {"recipe": 'description = "better words"\n' + TERNARY}).run(
        tmp_path, resume=True
    )
    assert "better words" in (tmp_path / "recipe.toml").read_text()
    assert "better words" in tersify.open(tmp_path / "model.terse").recipe


def test_a_setting_that_is_younger_than_the_run_had_its_default(tmp_path):
    directory = RunDirectory(tmp_path)
    spec = spec_of("dense with cosine and momentum", tmp_path)
    spec["train"]["epochs"] = 1
    expected = job_of(spec).run(tmp_path)
    identity = json.loads(directory.identity.read_text())
    del identity["train"]["mixup"]
    directory.identity.write_text(json.dumps(identity))
    assert job_of(spec).run(tmp_path, resume=True) == expected
    spec["train"]["mixup"] = 0.5
    with pytest.raises(ValueError, match=r"train\.mixup was 0\.0, now 0\.5"):
        job_of(spec).run(tmp_path, resume=True)
