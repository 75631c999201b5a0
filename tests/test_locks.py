"""One process at a time in a run directory, a sweep and a collection that grows."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import tersify
from tersify.cli import main
from tersify.lab.data import dataset
from tersify.lab.trainer import TrainConfig, train
from tersify.locks import LOCK, DirectoryLock, alone, check_unlocked

HOLD = (
    "import sys, time; from pathlib import Path; from tersify.locks import DirectoryLock\n"
    "lock = DirectoryLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(600)"
)
COMPRESS = [
    "compress",
    "digits-cnn",
    "--data",
    "digits",
    "--recipe",
    "twn",
    "--epochs",
    "1",
    "--device",
    "cpu",
]


@pytest.fixture
def holder(tmp_path):
    """Another process that holds `tmp_path/run`."""
    source = str(Path(tersify.__file__).parent.parent)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": source},
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate(timeout=60)


def test_the_second_run_in_a_directory_names_the_process_of_the_first(
    holder, tmp_path, capsys
):
    assert main([*COMPRESS, "--out", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err
    assert told == (
        f"tersify: process {holder.pid} is at work in {tmp_path}/run; wait for it to end, or give another --out\n"
    )
    assert os.listdir(tmp_path / "run") == [LOCK]


def test_a_library_call_is_refused_too(holder, tmp_path):
    data = dataset("digits")
    network = nn.Sequential(
        nn.Flatten(), nn.Linear(data.shape[1] * data.shape[2], data.classes)
    )
    with pytest.raises(ValueError, match=f"process {holder.pid} is at work in"):
        train(network, data, TrainConfig(epochs=1, device="cpu"), out=tmp_path / "run")


def test_the_lock_of_a_dead_process_is_taken_over(holder, tmp_path, capsys):
    holder.send_signal(signal.SIGKILL)
    holder.wait(timeout=60)
    assert (tmp_path / "run" / LOCK).read_text() == f"{holder.pid}\n"
    assert main([*COMPRESS, "--out", str(tmp_path / "run")]) == 0
    assert not (tmp_path / "run" / LOCK).exists()


def test_a_sweep_in_use_names_its_process(holder, tmp_path, capsys):
    pytest.importorskip("optuna")
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(
        'target = "digits-cnn"\ndata = "digits"\nrecipe = "twn"\nobjectives = ["accuracy"]\ntrials = 1\n'
        '[train]\nepochs = 1\n[space]\n"train.lr" = [0.1]\n'
    )
    assert main(["sweep", str(sweep), "--out", str(tmp_path / "run")]) == 2
    assert f"process {holder.pid} is at work in" in capsys.readouterr().err


def test_two_that_append_to_a_collection_do_not_lose_an_index(tmp_path):
    def collect(name, **more):
        weight = nn.Linear(8, 8)
        weight.weight.data[:, :4] = 0
        return tersify.collect(
            weight, torch.randn(2, 8), out=tmp_path / "run", name=name, **more
        )

    collect("first")
    with (
        alone(tmp_path / "run"),
        pytest.raises(ValueError, match=f"process {os.getpid()} is at work"),
    ):
        collect("second", append=True)
    assert len(collect("second", append=True)) == 2


def test_a_lock_is_released_with_its_file_gone_and_can_be_taken_again(tmp_path):
    for _ in range(3):
        with alone(tmp_path / "new"):
            assert (tmp_path / "new" / LOCK).read_text() == f"{os.getpid()}\n"
            with pytest.raises(ValueError, match="is at work"):
                check_unlocked(tmp_path / "new")
        assert os.listdir(tmp_path / "new") == []
        check_unlocked(tmp_path / "new")


def test_a_lock_whose_holder_has_just_removed_it_is_made_again(tmp_path, monkeypatch):
    first = DirectoryLock(tmp_path)
    seen = []
    real = os.open

    def open_then_release(path, *args, **kwargs):
        file = real(path, *args, **kwargs)
        if not seen:
            seen.append(path)
            first.release()  # between the second one's opening and its locking
        return file

    monkeypatch.setattr(os, "open", open_then_release)
    second = DirectoryLock(tmp_path)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="is at work"):
        DirectoryLock(tmp_path)
    second.release()


def test_a_file_system_without_locks_is_told_about(tmp_path, monkeypatch):
    import errno
    import fcntl

    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.warns(
            RuntimeWarning, match=r"cannot be locked \(Function not implemented\)"
        ),
        alone(tmp_path),
    ):
        pass
