"""Compiled networks in processes that fork, as servers do: right or a clear error in
the child, never a hang.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("tersify._runtime")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

LIMIT_S = 240  # a hang is for ever; nothing here takes more than seconds
PRELUDE = """
import os, sys, threading, warnings
warnings.filterwarnings("ignore", message=".*multi-threaded.*fork")
import torch
from torch import nn
from tersify.runtime import compile
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU()).eval()
x = torch.randn(8, 3, 24, 24)
fast = compile(model, x, threads=2)
with torch.no_grad():
    wanted = model(x)
fast(x)

def right(given):
    return bool((given - wanted).abs().max() <= 2e-5 * wanted.abs().max())

def child_status(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = work() or 0
        except SystemExit as leaving:
            code = leaving.code or 0
            os._exit(code) if work is hard_exit else sys.exit(code)
        except (ValueError, RuntimeError) as refusal:  # a clear error is an answer too
            code = 0 if "fork" in str(refusal) or "compile" in str(refusal) else 3
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def hard_exit():
    os._exit(0)
"""

CHILDREN = {
    "runs_it": "def work():\n    return 0 if right(fast(x)) else 2",
    "runs_it_many_times": "def work():\n    return 0 if all(right(fast(x)) for _ in range(20)) else 2",
    "drops_it": "def work():\n    global fast\n    fast = None\n    import gc\n    gc.collect()",
    "leaves_by_sys_exit": "def work():\n    sys.exit(0)",
    "runs_it_and_leaves_by_sys_exit": "def work():\n    fast(x)\n    sys.exit(0)",
    "compiles_its_own": "def work():\n    return 0 if right(compile(model, x, threads=2)(x)) else 2",
    "runs_it_and_drops_it": "def work():\n    global fast\n    fast(x)\n    fast = None",
    "compiles_then_drops_both": (
        "def work():\n    global fast\n    own = compile(model, x, threads=2)\n    own(x)\n    fast = own = None"
    ),
    "forks_again": "def work():\n    return child_status(lambda: 0 if right(fast(x)) else 2)",
    "runs_another_size": "def work():\n    return 0 if fast(x[:3]).shape[0] == 3 else 2",
    "runs_it_in_a_thread": (
        "def work():\n    got = []\n    t = threading.Thread(target=lambda: got.append(fast(x)))\n"
        "    t.start(); t.join()\n    return 0 if got and right(got[0]) else 2"
    ),
}


def run(script: str) -> subprocess.CompletedProcess[str]:
    """A new process, so that a hang here ends by a limit and takes no other test with
    it.
    """
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # its children hang as well
        process.communicate()
        pytest.fail(f"the process or its child hangs: not done in {LIMIT_S} s")
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.parametrize("child", CHILDREN)
def test_a_forked_child_ends(child):
    done = run(
        CHILDREN[child]
        + "\nstatus = child_status(work)\nassert status == 0, status\nassert right(fast(x))\n"
    )
    assert done.returncode == 0, done.stderr


def test_the_parent_runs_on_after_a_child_ran():
    done = run(
        CHILDREN["runs_it"]
        + "\nassert all(child_status(work) == 0 and right(fast(x)) for _ in range(3))\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "child", ["runs_it", "drops_it", "leaves_by_sys_exit", "compiles_its_own"]
)
def test_children_forked_while_another_thread_runs_the_network_end(child):
    script = (
        CHILDREN[child]
        + """
stop = threading.Event()
def busy():
    while not stop.is_set():
        fast(x)
thread = threading.Thread(target=busy)
thread.start()
statuses = [child_status(work) for _ in range(4)]
stop.set()
thread.join()
assert statuses == [0] * 4, statuses
assert right(fast(x))
"""
    )
    done = run(script)
    assert done.returncode == 0, done.stderr


def test_a_pool_of_forked_workers_serves_one_network():
    script = """
import multiprocessing
def serve(count):
    given = fast(x[:count])
    return bool((given - wanted[:count]).abs().max() <= 2e-5 * wanted.abs().max())
with multiprocessing.get_context("fork").Pool(3) as pool:
    assert all(pool.map(serve, [1, 2, 3, 4, 5, 6, 7, 8] * 3))
"""
    done = run(script)
    assert done.returncode == 0, done.stderr


def test_eight_threads_on_one_network_are_right():
    script = """
wrong = []
def serve(count):
    for _ in range(20):
        given = fast(x[:count])
        if not bool((given - wanted[:count]).abs().max() <= 2e-5 * wanted.abs().max()):
            wrong.append(count)
threads = [threading.Thread(target=serve, args=(1 + n,)) for n in range(8)]
for t in threads: t.start()
for t in threads: t.join()
assert not wrong, wrong
"""
    done = run(script)
    assert done.returncode == 0, done.stderr
