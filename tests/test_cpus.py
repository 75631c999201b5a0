import os
import subprocess
import sys

import pytest

from tersify.cpus import busy

pytest.importorskip("tersify._runtime")

UNDER_A_MASK = """
import os, torch
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
torch.set_num_threads(3)
import tersify
from tersify.cpus import busy, usable_cpus
fast = tersify.compile(torch.nn.Linear(4, 4), torch.randn(1, 4))
print(usable_cpus(), fast.threads)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux masks processors")
def test_a_network_takes_no_more_threads_than_the_mask_of_its_process_allows():
    done = subprocess.run(
        [sys.executable, "-c", UNDER_A_MASK],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == ["1", "1"]


def test_a_busy_machine_is_told_in_one_sentence(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (2.9, 9.0, 9.0))
    assert busy() is None
    monkeypatch.setattr(os, "getloadavg", lambda: (8.4, 0.0, 0.0))
    assert "load 8.4 on 2 CPUs" in (busy() or "")
