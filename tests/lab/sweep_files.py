"""Small sweeps on digits for the tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import tersify

SWEEP = """
target = "digits-cnn"
options = {{ width = 0.25 }}
data = "digits"
subset = 100
recipe = "ternary-fixed"
objectives = {objectives}
trials = {trials}
sampler = "{sampler}"
pruner = "{pruner}"

[train]
epochs = {epochs}
batch_size = 50
device = "cpu"

[space]
{space}
"""
SPACE = """
"ternary.regime" = ["log", "linear"]
"ternary.cap" = { uniform = [0.2, 0.9] }
"train.lr" = { log = [1e-3, 1e-1] }
"""
DEFAULTS = {
    "objectives": '["accuracy", "sparsity"]',
    "trials": 4,
    "sampler": "random",
    "pruner": "none",
    "epochs": 1,
    "space": SPACE,
}


def sweep_text(**changes) -> str:
    return SWEEP.format(**(DEFAULTS | changes))


def write_sweep(folder: Path, **changes) -> Path:
    path = folder / "mine.toml"
    path.write_text(sweep_text(**changes))
    return path


def start_sweep(file: Path, out: Path, *flags: str) -> subprocess.Popen:
    source = str(Path(tersify.__file__).parent.parent)
    environment = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tersify",
            "sweep",
            str(file),
            "--out",
            str(out),
            *flags,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def read_results(out: Path) -> dict:
    return json.loads((out / "sweep.json").read_text())


def finished(out: Path) -> dict[int, tuple]:
    """What the journal says of each finished trial: figures and the moment it ended."""
    import optuna

    study = optuna.load_study(study_name=None, storage=f"sqlite:///{out / 'study.db'}")
    return {
        t.number: (t.values, t.params, t.datetime_complete)
        for t in study.get_trials()
        if t.state.is_finished()
    }
