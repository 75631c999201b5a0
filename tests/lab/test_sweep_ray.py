"""Sweeps by Ray on this machine, in processes of their own: Ray belongs to the process
that starts it.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sweep_files import read_results, start_sweep, sweep_text

import tersify

pytest.importorskip("ray", reason="needs Ray (the extra 'sweep')")


@pytest.mark.long
def test_fig4s_smoke_run_finds_the_same_with_both_engines(tmp_path):
    source = str(Path(tersify.__file__).parent.parent)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tersify",
            "reproduce",
            "ternary-fig4",
            "--smoke",
            "--out",
            str(tmp_path / "out"),
        ],
        capture_output=True,
        text=True,
        timeout=400,
        env=os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "engine ray: the same 8 trials, the same front of" in done.stdout
    assert (tmp_path / "out" / "ray" / "report.html").is_file()


@pytest.mark.slow
def test_a_trial_whose_worker_dies_is_tried_again_and_a_pruner_reaches_workers(
    tmp_path,
):
    (tmp_path / "net.py").write_text(
        "import os, pathlib, signal, torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self, kind):\n"
        "        super().__init__(64, 10)\n"
        "        mark = pathlib.Path(__file__).parent / 'died'\n"
        "        if kind == 1 and 'ray' in __import__('sys').modules and not mark.exists():\n"
        "            mark.touch()\n"
        f"            os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
        "    def forward(self, x):\n"
        "        return super().forward(x.flatten(1))\n"
    )
    text = sweep_text(
        space='"options.kind" = [0, 1, 2, 3]',
        sampler="grid",
        trials=4,
        objectives='["accuracy"]',
        pruner="median",
        epochs=2,
    )
    text = text.replace('"digits-cnn"', '"net.py:Net"').replace(
        "options = { width = 0.25 }\n", ""
    )
    (tmp_path / "mine.toml").write_text(
        text.replace('recipe = "ternary-fixed"', 'recipe = "twn"')
    )
    process = start_sweep(tmp_path / "mine.toml", tmp_path / "out", "--engine", "ray")
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output
    assert (tmp_path / "died").exists()
    trials = read_results(tmp_path / "out")["trials"]
    assert [t["state"] for t in trials] == ["complete"] * 4, output
    assert all(t["epochs_told"] == 2 for t in trials)


def test_an_address_where_no_cluster_answers_is_one_sentence_and_exit_2(tmp_path):
    (tmp_path / "mine.toml").write_text(sweep_text())
    flags = ("--engine", "ray", "--address", "127.0.0.1:1")
    process = start_sweep(tmp_path / "mine.toml", tmp_path / "out", *flags)
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 2, output
    assert (
        "tersify: no Ray cluster answers at 127.0.0.1:1"
        in output.strip().splitlines()[-1]
    )
    assert not (tmp_path / "out").exists()
