"""Where the time of a training step goes: the host's part, the GPU's, and the calls
that one loop adds to another.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

STEPS = 5


def host_milliseconds(
    steps: dict[str, Callable[[], object]], samples: int = 40
) -> dict[str, float]:
    """What the host needs to issue a step to a GPU that has nothing else to do."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(samples):
        for name, step in steps.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            step()
            times[name].append(1e3 * (time.perf_counter() - start))
    torch.cuda.synchronize()
    return {name: statistics.median(values) for name, values in times.items()}


def print_profile(
    steps: dict[str, Callable[[], object]], *, on_gpu: bool, most: int = 24
) -> None:
    """The calls per step in which the loops differ, and what the GPU is busy with."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    counts: dict[str, Counter[str]] = {}
    for name, step in steps.items():
        with profile(activities=activities) as recorded:
            for _ in range(STEPS):
                step()
            if on_gpu:
                torch.cuda.synchronize()
        events = recorded.events() or []
        counts[name] = Counter(_short(event.name) for event in events)
        if on_gpu:
            kernels = [
                e
                for e in events
                if e.device_type == DeviceType.CUDA and not e.is_user_annotation
            ]
            busy = (
                sum(kernel.time_range.elapsed_us() for kernel in kernels) / STEPS / 1e3
            )
            print(
                f"            {name}: {len(kernels) / STEPS:.0f} kernels a step, GPU busy {busy:.2f} ms"
            )
    first, *others = counts
    for name in others:
        changes = {
            key: (counts[name][key] - counts[first][key]) / STEPS
            for key in counts[name] | counts[first]
        }
        largest = sorted(
            (key for key in changes if changes[key]), key=lambda key: -abs(changes[key])
        )[:most]
        print(f"            calls and kernels of {name} beyond {first}, per step:")
        for key in largest:
            print(f"              {changes[key]:+7.1f}  {key}")


def _short(name: str) -> str:
    return name if len(name) <= 100 else name[:97] + "…"
