import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

import tersify
from tersify.cli import main

COMMAND = [
    "compress",
    "digits-cnn",
    "--data",
    "digits",
    "--recipe",
    "ternary-log",
    "--epochs",
    "24",
]
COMMAND += ["--option", "width=0.5", "--device", "cpu", "--set", "batch_size=32"]


def rows(out):
    history = out / "history.jsonl"
    return len(history.read_text().splitlines()) if history.exists() else 0


@pytest.mark.long
def test_ctrl_c_leaves_a_run_that_the_printed_command_resumes(tmp_path, capsys):
    out = tmp_path / "a run"
    process = subprocess.Popen(
        [sys.executable, "-m", "tersify", *COMMAND, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(tersify.__file__).parent.parent)},
        # A shell's background jobs, and all that they start, ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while rows(out) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130, error
    assert "Traceback" not in error
    assert f"--out '{out}' --resume" in error
    assert not (out / "metrics.json").exists()

    assert main([*COMMAND, "--out", str(out), "--resume"]) == 0
    assert json.loads((out / "metrics.json").read_text())["epochs"] == 24
    first_shown = capsys.readouterr().out.split("epoch ")[1]
    assert not first_shown.startswith("1/")


def test_ctrl_c_before_anything_was_done_leaves_with_the_command_that_starts_it(
    tmp_path, monkeypatch, capsys
):
    def pressed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("tersify.lab.trainer.run_with_twin", pressed)
    assert main([*COMMAND, "--out", str(tmp_path / "a run")]) == 130
    told = capsys.readouterr().err
    assert "nothing was done yet. Start with:" in told
    assert told.endswith(f"--out '{tmp_path / 'a run'}'\n")


def test_ctrl_c_before_the_commands_are_imported_shows_no_traceback(
    monkeypatch, capsys
):
    def pressed(name):
        raise KeyboardInterrupt

    half_imported = ModuleType("tersify.cli.app")
    half_imported.__getattr__ = pressed
    monkeypatch.setitem(sys.modules, "tersify.cli.app", half_imported)
    assert main(["--version"]) == 130
    assert capsys.readouterr().err == "tersify: stopped\n"
