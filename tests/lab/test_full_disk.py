"""A disk that fills up: one sentence, and what was there before is still there."""

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tersify
from tersify.cli import main, one_line
from tersify.codec import atomic
from tersify.lab.trainer.checkpoint import CheckpointWriter, read_checkpoint

ARGUMENTS = [
    "compress",
    "digits-cnn",
    "--data",
    "digits",
    "--recipe",
    "ternary-log",
    "--device",
    "cpu",
    "--option",
    "width=0.25",
    "--set",
    "batch_size=500",
]


@pytest.fixture
def full_disk(monkeypatch):
    """Every file takes 100 bytes and no more."""

    def write(self, data):
        if self.tell() + len(data) > 100:
            self.failure = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise self.failure
        return io.FileIO.write(self, data)

    monkeypatch.setattr(atomic._Watched, "write", write)


def checkpoint(epoch):
    empty = {
        "model": {"w": torch.full((10_000,), float(epoch))},
        "optimizer": {},
        "session": {},
        "average": {},
    }
    return {"epoch": epoch, "history": []} | empty


def test_a_file_that_does_not_fit_is_named_and_the_old_one_stays(tmp_path, request):
    path = tmp_path / "net.terse"
    tersify.save({"w": torch.ones(3)}, path)
    before = path.read_bytes()
    request.getfixturevalue("full_disk")
    with pytest.raises(OSError, match="No space left on device") as caught:
        tersify.save({"w": torch.randn(100, 100)}, path)
    assert caught.value.filename == str(path)
    assert one_line(caught.value) == f"{path}: No space left on device; free some space"
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["net.terse"]


def test_a_checkpoint_that_does_not_fit_is_no_riddle_of_torch_and_the_one_before_survives(
    tmp_path, request
):
    path = tmp_path / "last.pt"
    writer = CheckpointWriter(path)
    writer.write(checkpoint(1))
    writer.close()
    request.getfixturevalue("full_disk")
    writer = CheckpointWriter(path)
    writer.write(checkpoint(2))
    with pytest.raises(OSError, match="No space left on device") as caught:
        writer.close()
    assert caught.value.filename == str(path)
    assert read_checkpoint(path)["epoch"] == 1
    assert os.listdir(tmp_path) == ["last.pt"]


def test_a_run_whose_checkpoints_no_longer_fit_ends_in_one_sentence_and_goes_on_when_there_is_room(
    tmp_path,
):
    out = tmp_path / "run"
    told = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).parent / "full_disk.py"),
            "4000",
            *ARGUMENTS,
            "--epochs",
            "2",
            "--out",
            str(out),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ
        | {
            "PYTHONPATH": str(Path(tersify.__file__).parent.parent),
            "OMP_NUM_THREADS": "1",
        },
    )
    assert told.returncode == 2, told.stderr
    twin = out / "dense-twin"  # which is trained first
    assert (
        told.stderr.strip()
        == f"tersify: {twin}/checkpoint/last.pt: File too large; free some space"
    )
    assert sorted(os.listdir(twin / "checkpoint")) == ["run.json"]
    assert main([*ARGUMENTS, "--epochs", "2", "--out", str(out), "--resume"]) == 0
    assert (out / "metrics.json").is_file()
