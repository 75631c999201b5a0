"""Forked children of a process in which torch has run on several threads. Torch's
threads are not in the child, and it waits for them for ever, so a compiled network must
not let it.
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
import os, sys, threading, time, warnings
warnings.filterwarnings("ignore", message=".*multi-threaded.*fork")
import torch
import torch.nn.functional as F
from torch import nn
from tersify.runtime import compile
torch.manual_seed(0)
torch.set_num_threads(2)

class Torchy(nn.Module):  # some of it is torch's in any case
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(256, 256), nn.Linear(256, 256)
    def forward(self, x):
        y = torch.cumsum(self.a(x), 0)
        return torch.logcumsumexp(self.b(y), 1).sort(-1).values.cos()

class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(256))
        self.a = nn.Linear(256, 256)
    def forward(self, x):
        self.n.add_(x.mean(0))
        return self.a(x).cumsum(0) + self.n

conv = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU()).eval()
torchy, counting = Torchy().eval(), Counting().eval()
x, z = torch.randn(8, 3, 24, 24), torch.randn(256, 256)
sparse = nn.Linear(256, 256).eval()
with torch.no_grad():
    sparse.weight.mul_(torch.rand_like(sparse.weight) > 0.9)
    wanted = {conv: conv(x), torchy: torchy(z), sparse: sparse(z)}
    wanted_of_three = conv(x[:3])
fast = compile(conv, x, threads=2)
mixed = compile(torchy, z, threads=2)
counted = compile(counting, z, threads=2)
fast(x), mixed(z)
for _ in range(3):  # torch's threads are there for certain
    torch.randn(2000, 2000).exp() @ torch.randn(2000, 500)

def right(given, wanted):  # in numpy: torch itself would hang in a child that no network of ours made safe
    given, wanted = given.numpy(), wanted.numpy()
    return bool(abs(given - wanted).max() <= 2e-5 * abs(wanted).max())

def status_of(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = work()
        finally:
            os._exit(int(code))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""

CHILDREN = {
    "a_new_size": "return not right(fast(x[:3]), wanted_of_three)",
    "a_known_size": "return not right(fast(x), wanted[conv])",
    "torchs_part_of_a_known_size": "return not right(mixed(z), wanted[torchy])",
    "a_new_size_with_torchs_part": "return mixed(z[:100]).shape != (100, 256)",
    "a_network_of_its_own": "return not right(compile(sparse, z, threads=2)(z), wanted[sparse])",
    "a_profile": "return not fast.profile(x, repeats=2)",
    "an_input_that_is_a_buffer_it_changes": "return counted(counting.n[None].expand(256, 256)).shape != z.shape",
    "a_new_size_in_a_thread": (
        "got = []\n    t = threading.Thread(target=lambda: got.append(mixed(z[:99]))); t.start(); t.join()\n"
        "    return not got"
    ),
    "known_sizes_in_threads_after_a_call_of_its_own": (
        "got = []\n    mixed(z)\n    for _ in range(3):\n"
        "        t = threading.Thread(target=lambda: got.append(mixed(z))); t.start(); t.join()\n"
        "    return not all(right(y, wanted[torchy]) for y in got) or len(got) != 3"
    ),
    "a_new_size_in_its_own_child": "return status_of(lambda: not right(fast(x[:3]), wanted_of_three))",
    "torch_afterwards": "fast(x[:2])\n    return (torch.ones(999, 999).exp() @ torch.ones(999, 9)).shape != (999, 9)",
    "infinities": "return fast(x.clone().fill_(float('inf'))).isfinite().any()",
}


def run(script: str, **settings: str) -> str:
    """What a new process prints; a hang there ends by a limit."""
    env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"} | settings
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # its children hang as well
        process.communicate()
        pytest.fail(f"the process or its child hangs: not done in {LIMIT_S} s")
    assert process.returncode == 0, out
    return out


def test_a_forked_child_runs_torchs_parts_too():
    # one process for all, each in a child of its own with a limit
    script = (
        "\n".join(f"def {name}():\n    {body}" for name, body in CHILDREN.items())
        + f"""
bad = {{}}
for name in {list(CHILDREN)}:
    pid = os.fork()
    if pid == 0:
        code = 1
        os.setpgid(0, 0)
        try:
            code = globals()[name]()
        finally:
            os._exit(int(code))
    until = time.monotonic() + 15
    done = 0
    while not done and time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)
    if not done:
        os.killpg(pid, 9)
        os.waitpid(pid, 0)
    if not done or status:
        bad[name] = status if done else "hangs"
assert not bad, bad
assert right(fast(x), wanted[conv]) and torch.get_num_threads() == 2
"""
    )
    run(script)


def test_a_child_is_told_once_that_torch_runs_on_one_thread():
    script = """
def work():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            fast(x[:2]); fast(x[:3]); mixed(z)
    told = [str(w.message) for w in told]
    print(told, flush=True)
    return len(told) != 1 or "fork" not in told[0] or torch.get_num_threads() != 1
assert status_of(work) == 0
"""
    run(script)


def test_a_child_whose_torch_has_one_thread_is_told_nothing():
    script = """
torch.set_num_threads(1)
def work():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fast(x[:2]); mixed(z)
    return len(told)
assert status_of(work) == 0
"""
    run(script)


def test_threads_that_a_child_chooses_after_its_first_call_stay():
    script = """
def work():
    fast(x[:2])
    torch.set_num_threads(2)
    fast(x)
    return torch.get_num_threads() != 2
assert status_of(work) == 0
"""
    run(script)


def test_a_pool_of_forked_workers_serves_sizes_that_are_new_to_it():
    script = """
import multiprocessing
def serve(count):
    return right(fast(x[:count]), wanted[conv][:count]) and mixed(z[:count]).shape == (count, 256)
with multiprocessing.get_context("fork").Pool(3) as pool:
    assert all(pool.map(serve, [1, 2, 3, 4, 5, 6, 7, 8]))
"""
    run(script)


def test_children_forked_while_another_thread_runs_torchs_parts_end():
    script = """
stop = threading.Event()
def busy():
    while not stop.is_set():
        mixed(z)
thread = threading.Thread(target=busy)
thread.start()
statuses = [status_of(lambda: not right(fast(x[:3]), wanted_of_three)) for _ in range(4)]
stop.set()
thread.join()
assert statuses == [0] * 4, statuses
"""
    run(script)
