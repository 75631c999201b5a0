"""The plan in plain torch, in any floating type: what every kernel is tested against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.plan import Node, Plan


def run_reference(plan: Plan, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs of `plan`, computed in the type of the inputs."""
    values = run_values(plan, inputs)
    return tuple(values[name] for name in plan.outputs)


def run_values(plan: Plan, inputs: Sequence[Tensor]) -> dict[str, Any]:
    """Every value of the plan by its name."""
    dtype = next((x.dtype for x in inputs if x.is_floating_point()), torch.float32)
    values: dict[str, Any] = {name: _as(dtype, constant) for name, constant in plan.constants.items()}
    values |= dict(zip(plan.inputs, inputs, strict=True))
    for node in plan.nodes:
        values.update(run_node(plan, node, values))
    return values


def run_node(plan: Plan, node: Node, values: dict[str, Any]) -> dict[str, Any]:
    """What a node makes, by name."""
    made = node.op.reference([values[name] for name in node.inputs], node, plan.quants)
    return dict(zip(node.makes, results_of(made), strict=False))


def results_of(made: Any) -> list[Any]:
    """The tensors of a call's result in order, as the capture named them."""
    if isinstance(made, Tensor):
        return [made]
    return [tensor for item in made for tensor in results_of(item)] if isinstance(made, (tuple, list)) else []


def _as(dtype: torch.dtype, constant: Tensor) -> Tensor:
    return constant.to(dtype) if constant.is_floating_point() else constant
