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
MOST_LINES = 15  # of the script, its imports aside
# What its file is loaded into, among the script's own names.
INTO = {
    "hf": "ViTForImageClassification(config)",
    "lightning": "Digits()",
    "accelerate": "network('digits-cnn')",
}
JUDGE = """
import runpy, sys, torch, tersify
from tersify.lab import normalize
names = runpy.run_path(sys.argv[1])
net = tersify.load(sys.argv[2], into=eval(sys.argv[3], names)).eval()
test = names["digits"].test
with torch.no_grad():
    found = getattr(net, "net", net)(normalize(test.images, names["digits"]))
found = getattr(found, "logits", found).argmax(1)
print(f"{100 * (found == test.labels).float().mean():.1f} % right")
"""
FILES = {"hf": "vit.terse", "lightning": "cnn.terse", "accelerate": "cnn.terse"}
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
    script = str(EXAMPLES / SCRIPTS[library])
    told = run(
        library, "-c", JUDGE, script, FILES[library], INTO[library], cwd=tmp_path
    )
    (right,) = (
        float(line.split(" %")[0])
        for line in told.splitlines()
        if line.endswith("% right")
    )
    assert right > 80
    (file,) = tmp_path.glob("*.terse")
    assert tersify.open(file).read().sparsity_percent() > 60


@EACH
def test_the_newcomers_script_has_fifteen_lines_beside_its_imports(library):
    text = (EXAMPLES / SCRIPTS[library]).read_text(encoding="utf-8")
    without = {
        line
        for node in ast.parse(text).body
        if isinstance(node, (ast.Import, ast.ImportFrom)) or node.lineno == 1
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    lines = [
        line
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and number not in without
    ]
    assert len(lines) <= MOST_LINES


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
