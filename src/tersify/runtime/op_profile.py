"""Where a compiled network spends its time, operation by operation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.engine import Segment
from tersify.runtime.network import Network
from tersify.runtime.plan import Plan
from tersify.runtime.reference import run_node
from tersify.runtime.torch_stage import TorchStage


@dataclass(frozen=True, kw_only=True)
class OpTime:
    """One node of the plan: the kernels that served it, and its wall time at the batch
    size that was given.
    """

    name: str
    kind: str
    parameter: str  # the weight's name in the model; empty without one
    kernel: str
    microseconds: float


def profile(network: Network, inputs: Sequence[Tensor], repeats: int) -> list[OpTime]:
    """Every node in the order of the plan."""
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    plan = network.plan
    times: dict[str, list[float]] = {node.name: [] for node in plan.nodes}
    kernels: dict[str, dict[str, None]] = {node.name: {} for node in plan.nodes}
    for _ in range(repeats + 1):
        # A node may take several steps of the engine.
        spent = dict.fromkeys(times, 0.0)
        for name, kernel, microseconds in _steps(network, inputs):
            spent[name] += microseconds
            kernels[name][kernel] = None
        for name, microseconds in spent.items():
            times[name].append(microseconds)
    return [
        OpTime(
            name=node.name,
            kind=node.kind,
            parameter=getattr(node.op, "parameter", ""),
            kernel=" + ".join(kernel or node.kind for kernel in kernels[node.name]),
            # the first call still packs and allocates
            microseconds=statistics.median(times[node.name][1:]),
        )
        for node in plan.nodes
    ]


def _steps(
    network: Network, inputs: Sequence[Tensor]
) -> Iterator[tuple[str, str, float]]:
    """One run: node, kernel and microseconds of every step. Steps without a kernel's
    name have an empty one.
    """
    values: dict[str, Any] = {
        **network.plan.constants,
        **dict(zip(network.plan.inputs, inputs, strict=True)),
    }
    with torch.no_grad():
        # without kernels: no stages
        stages: Sequence[Segment | TorchStage | Plan] = network.stages or [network.plan]
        for stage in stages:
            if isinstance(stage, Segment):
                outputs, steps = stage.profile([values[name] for name in stage.inputs])
                values.update(zip(stage.outputs, outputs, strict=True))
                yield from steps
                continue
            for node in stage.nodes:
                start = time.perf_counter()
                values.update(run_node(network.plan, node, values))
                yield node.name, "torch", 1e6 * (time.perf_counter() - start)
