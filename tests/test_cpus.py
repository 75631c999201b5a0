import subprocess
import sys

import pytest

pytest.importorskip("tersify._runtime")

UNDER_A_MASK = """
import os, torch
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
torch.set_num_threads(3)
import tersify
from tersify.cpus import usable_cpus
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
