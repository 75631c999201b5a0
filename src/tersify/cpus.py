"""How many processors there are for this process."""

from __future__ import annotations

import os


def usable_cpus() -> int:
    """Those it may run on: a mask (taskset, a container's) may leave fewer than the
    machine has.
    """
    if hasattr(os, "sched_getaffinity"):  # only Linux masks processors
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
