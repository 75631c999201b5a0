"""Ranks that disagree, that die, and that share what is written."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import distributed

import tersify
import two_ranks
from method_zoo import recipe_of
from tersify.lab.trainer import TrainConfig, train
from tersify.methods import Prune, Ternary, TernaryWeightNetwork

NETWORK = """
from torch import nn

def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
"""


def train_with(folder, methods, batch_size=16, **settings):
    """Rank r trains with the r-th method, and tells how it ended."""
    rank = distributed.get_rank()
    config = TrainConfig(
        epochs=1,
        batch_size=batch_size,
        optimizer="sgd",
        lr=0.01,
        device="cpu",
        **settings,
    )
    try:
        metrics = train(
            two_ranks.network(),
            two_ranks.digits(),
            config,
            out=folder / "run",
            recipe=recipe_of((methods[rank],)),
        )
        told = json.dumps(metrics)
    except ValueError as error:
        told = str(error)
    (folder / f"{rank}.txt").write_text(told)


def told_by_both(folder, *arguments):
    two_ranks.run(train_with, folder, *arguments)
    return [(folder / f"{rank}.txt").read_text() for rank in (0, 1)]


def test_ranks_with_different_recipes_are_refused_by_all_of_them(tmp_path):
    for told in told_by_both(
        tmp_path, [TernaryWeightNetwork(), TernaryWeightNetwork(factor=0.5)]
    ):
        assert "rank 1 was started with other settings than rank 0" in told
        assert "factor = 0.5" in told
    assert not (tmp_path / "run").exists()


def test_a_batch_that_the_ranks_cannot_share_evenly_trains_like_one_process(tmp_path):
    first, second = map(
        json.loads,
        told_by_both(tmp_path, [Ternary(scale="tensor", spread=0.2)] * 2, 15),
    )
    assert first == second
    config = TrainConfig(
        epochs=1, batch_size=15, optimizer="sgd", lr=0.01, device="cpu"
    )
    recipe = recipe_of((Ternary(scale="tensor", spread=0.2),))
    alone = train(
        two_ranks.network(),
        two_ranks.digits(),
        config,
        out=tmp_path / "alone",
        recipe=recipe,
    )
    a, b = (
        tersify.open(tmp_path / run / "model.terse").read() for run in ("run", "alone")
    )
    for name, tensor in a.state_dict().items():
        assert torch.allclose(tensor, b.state_dict()[name], atol=1e-5), name
    assert alone["accuracy"] == first["accuracy"]


def test_more_ranks_than_images_in_a_batch_are_refused(tmp_path):
    for told in told_by_both(tmp_path, [Prune()] * 2, 1):
        assert "batch_size must be at least the number of ranks, 2, got 1" in told


def torchrun(folder, out, *flags):
    source = str(Path(tersify.__file__).parent.parent)
    environment = os.environ | {
        "PYTHONPATH": source,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    environment |= {"PYTHONUNBUFFERED": "1"}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
        "--standalone",
        "-m",
        "tersify",
        "compress",
        f"{folder / 'net.py'}:mlp",
        "--data",
        "digits",
        "--recipe",
        "twn",
        "--epochs",
        "8",
        "--device",
        "cpu",
        "--out",
        str(out),
        *flags,
    ]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def ranks_of(parent):
    """The process numbers of the ranks that torchrun started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = re.sub(r"\(.*\)", "()", stat.read_text()).split()
        except OSError:
            continue
        if int(fields[3]) == parent:
            found.append(int(fields[0]))
    return sorted(found)


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the ranks in /proc")
def test_a_rank_killed_and_restarted_by_torchrun_ends_with_the_same_accuracy(tmp_path):
    (tmp_path / "net.py").write_text(NETWORK)
    whole = torchrun(tmp_path, tmp_path / "whole")
    output = whole.communicate(timeout=180)[0]
    assert whole.returncode == 0, output

    broken = torchrun(tmp_path, tmp_path / "broken")
    history = tmp_path / "broken" / "history.jsonl"
    deadline = time.monotonic() + 120
    while not (history.is_file() and len(history.read_text().splitlines()) >= 2):
        assert time.monotonic() < deadline, "no second epoch within two minutes"
        time.sleep(0.01)
    os.kill(ranks_of(broken.pid)[-1], signal.SIGKILL)
    output = broken.communicate(timeout=180)[0]
    assert broken.returncode == 0, output
    assert "exitcode: -9" in output
    figures = [
        json.loads((tmp_path / run / "metrics.json").read_text())
        for run in ("whole", "broken")
    ]
    assert figures[0]["accuracy"] == figures[1]["accuracy"]
    a, b = (
        tersify.open(tmp_path / run / "model.terse").read().state_dict()
        for run in ("whole", "broken")
    )
    assert all(torch.equal(a[name], b[name]) for name in a)
