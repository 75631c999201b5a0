"""What newcomers run: the examples as they are, and two ranks."""

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import tersify

HERE = Path(__file__).parent
EXAMPLES = HERE.parent.parent / "examples" / "integrations"
NEEDS = {
    "hf": ("transformers", "accelerate"),
    "lightning": ("lightning",),
    "accelerate": ("accelerate",),
}
SCRIPTS = {
    "hf": "hf_trainer.py",
    "lightning": "lightning_cnn.py",
    "accelerate": "accelerate_loop.py",
}
MOST_STATEMENTS = 15  # of the script, its imports aside
EACH = pytest.mark.parametrize("library", NEEDS)


def run(library, *command, cwd):
    for package in NEEDS[library]:
        if find_spec(package) is None:
            pytest.skip(f"needs the package {package}")
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.long
@EACH
def test_the_newcomers_script_trains_and_its_file_is_right(library, tmp_path):
    told = run(library, str(EXAMPLES / SCRIPTS[library]), cwd=tmp_path)
    (right,) = (
        float(line.split(" %")[0])
        for line in told.splitlines()
        if line.endswith("% right")
    )
    assert right > 80
    (file,) = tmp_path.glob("*.terse")
    assert tersify.open(file).read().sparsity_percent() > 60


@EACH
def test_the_newcomers_script_has_fifteen_statements_beside_its_imports(library):
    tree = ast.parse((EXAMPLES / SCRIPTS[library]).read_text(encoding="utf-8"))
    counted = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt)
        and not isinstance(node, (ast.Import, ast.ImportFrom, ast.ClassDef))
        and node is not tree.body[0]
    ]
    assert len(counted) <= MOST_STATEMENTS


@pytest.mark.long
@EACH
def test_two_ranks_end_with_the_same_weights_and_one_file(library, tmp_path):
    program = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(HERE / "ranks_of_others.py"),
    ]
    run(library, *program, library, str(tmp_path), cwd=tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    # of which DDP spreads the first rank's when it is read
    learned = [name for name in first if "running" not in name]
    assert all(torch.equal(first[name], second[name]) for name in learned)
    stored = tersify.open(tmp_path / "net.terse").read().state_dict()
    assert all(torch.equal(stored[name], first[name]) for name in stored)
