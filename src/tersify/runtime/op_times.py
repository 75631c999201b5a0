"""Where a compiled network spends its time, operation by operation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.op import Stage
from tersify.runtime.plan import Plan
from tersify.runtime.reference import run_node


@dataclass(frozen=True, kw_only=True)
class OpTime:
    """One node of the plan: the kernels that served it, and its wall time at the batch size that was given."""

    name: str
    kind: str
    parameter: str  # the weight's name in the model; empty without one
    kernel: str
    microseconds: float


def profile(plan: Plan, stages: Sequence[Stage] | None, inputs: Sequence[Tensor], repeats: int) -> list[OpTime]:
    """Every node in the order of the plan. Without `stages` the plan runs in plain torch."""
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    whole = stages if stages is not None else [Stage(plan.nodes, None, (), ())]
    times: dict[str, list[float]] = {node.name: [] for node in plan.nodes}
    kernels: dict[str, dict[str, None]] = {node.name: {} for node in plan.nodes}
    for _ in range(repeats + 1):
        spent = dict.fromkeys(times, 0.0)
        for name, kernel, microseconds in _steps(plan, whole, inputs):
            spent[name] += microseconds
            kernels[name][kernel] = None
        for name, microseconds in spent.items():
            times[name].append(microseconds)
    return [
        OpTime(
            name=node.name,
            kind=node.kind,
            parameter=node.parameter,
            kernel=" + ".join(kernel or node.kind for kernel in kernels[node.name]),
            microseconds=statistics.median(times[node.name][1:]),  # the first call still packs and allocates
        )
        for node in plan.nodes
    ]


def _steps(plan: Plan, stages: Sequence[Stage], inputs: Sequence[Tensor]) -> Iterator[tuple[str, str, float]]:
    """One run: node, kernel and microseconds of every step. Steps without a kernel's name have an empty one."""
    values: dict[str, Any] = {**plan.constants, **dict(zip((i.name for i in plan.inputs), inputs, strict=True))}
    with torch.no_grad():
        for stage in stages:
            if stage.segment is not None:
                outputs, steps = stage.segment.profile([values[name] for name in stage.inputs])
                values.update(zip(stage.outputs, outputs, strict=True))
                yield from steps
                continue
            for node in stage.nodes:
                start = time.perf_counter()
                values[node.name] = run_node(node, values, torch.float32)
                yield node.name, "torch", 1e6 * (time.perf_counter() - start)
