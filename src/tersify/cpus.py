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


def busy() -> str | None:
    """One sentence where other processes keep the processors from what is timed."""
    if not hasattr(os, "getloadavg"):
        return None
    # The load of the last minute counts processes that run or wait.
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    # What is timed may itself have filled them for the last minute.
    if load <= cpus + 1:
        return None
    return (
        f"the machine is busy (load {load:.1f} on {cpus} CPUs), so these times are "
        "not those of a quiet one; run it again when nothing else runs"
    )
