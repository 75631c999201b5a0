"""A plan made ready to run: stages of kernels and of torch calls, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.engine import Kernels, Segment
from tersify.runtime.ops import Recurrent
from tersify.runtime.plan import Node, Plan
from tersify.runtime.reference import run_node, run_reference
from tersify.runtime.torch_stage import TorchStage

# of a recurrent layer: torch takes all of them through a step in one product
MANY_ITEMS = 8


class Network:
    """Runs one plan. Without kernels everything runs in plain torch."""

    def __init__(self, plan: Plan, kernels: Kernels | None) -> None:
        self.plan = plan
        self.stages: list[Segment | TorchStage] = (
            [] if kernels is None else _stages(plan, kernels)
        )
        self._in_plain_torch = kernels is None

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The plan's outputs in order."""
        # entering the mode takes as long as a small call
        if not torch.is_grad_enabled():
            return self._run(inputs)
        with torch.no_grad():
            return self._run(inputs)

    def _run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        if self._in_plain_torch:
            return list(run_reference(self.plan, inputs))
        values: dict[str, Any] = dict(zip(self.plan.inputs, inputs, strict=True))
        for stage in self.stages:
            made = stage.run(*[values[name] for name in stage.inputs])
            # An engine gives None for inputs that hold infinity or NaN.
            if made is None:
                made = self._segment_in_torch(stage, values)
            values.update(zip(stage.outputs, made, strict=True))
        constants = self.plan.constants
        return [
            values[name] if name in values else constants[name]
            for name in self.plan.outputs
        ]

    def _segment_in_torch(
        self, stage: Segment | TorchStage, values: dict[str, Any]
    ) -> list[Tensor]:
        """An infinite number times a zero weight is NaN, so every product counts."""
        inner = dict(values)
        for node in stage.nodes:
            inner.update(run_node(self.plan, node, inner))
        return [inner[name] for name in stage.outputs]

    @property
    def calls_torch(self) -> bool:
        return not self._in_plain_torch and any(
            isinstance(stage, TorchStage) for stage in self.stages
        )

    @property
    def may_lose(self) -> bool:
        """Whether torch may be faster: what it computes itself here is faster in its own
        module at times, and so is a recurrent layer of many items.
        """
        many = any(
            isinstance(node.op, Recurrent) and node.op.sizes(node)[0] >= MANY_ITEMS
            for node in self.plan.nodes
        )
        return self.calls_torch or (many and not self._in_plain_torch)

    def only_segment(self) -> Segment | None:
        """The segment that is the whole network, if it is one: no values need to be
        kept by name then.
        """
        if len(self.stages) != 1 or not isinstance(self.stages[0], Segment):
            return None
        segment = self.stages[0]
        # An output may be an input or a constant passed through, which no segment
        # makes.
        whole = (segment.inputs, segment.outputs) == (
            tuple(self.plan.inputs),
            self.plan.outputs,
        )
        return segment if whole else None

    def weight_bytes(self) -> int:
        """Bytes of the packed weights that the kernels read."""
        return sum(
            stage.engine.weight_bytes
            for stage in self.stages
            if isinstance(stage, Segment)
        )


def _stages(plan: Plan, kernels: Kernels) -> list[Segment | TorchStage]:
    runs = runs_of_nodes(plan)
    values = plan.values()
    stages: list[Segment | TorchStage] = []
    for position, run in enumerate(runs):
        # A stage returns only what is read outside it; everything else stays inside.
        later = set(plan.outputs) | {
            name
            for rest in runs[position + 1 :]
            for node in rest
            for name in node.inputs
        }
        if run[0].in_torch:
            stages.append(TorchStage(run, plan.constants, later))
        else:
            stages.append(Segment(kernels, run, values, later, plan.quants))
    return stages


def runs_of_nodes(plan: Plan) -> list[list[Node]]:
    """Nodes that follow each other and run in the same place."""
    runs: list[list[Node]] = []
    for node in plan.nodes:
        if runs and node.in_torch == runs[-1][-1].in_torch:
            runs[-1].append(node)
        else:
            runs.append([node])
    return runs
