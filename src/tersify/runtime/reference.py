"""The plan in plain torch, in any floating type: what every kernel is tested against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.inputs import in_order
from tersify.runtime.plan import Node, Plan


def run_reference(plan: Plan, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs of `plan`; inputs of another floating type than the plan's make its
    constants of that type, too.
    """
    values = run_values(plan, inputs)
    return tuple(values[name] for name in plan.outputs)


def run_values(plan: Plan, inputs: Sequence[Tensor]) -> dict[str, Any]:
    """Every value of the plan by its name."""
    given = zip(inputs, plan.inputs.values(), strict=True)
    # In float64 for instance, to see the error of float32 alone.
    other = next(
        (
            x.dtype
            for x, value in given
            if x.is_floating_point() and x.dtype != value.dtype
        ),
        None,
    )
    values: dict[str, Any] = {
        name: _as(other, constant) for name, constant in plan.constants.items()
    }
    values |= dict(zip(plan.inputs, inputs, strict=True))
    for node in plan.nodes:
        values.update(run_node(plan, node, values))
    return values


def run_node(plan: Plan, node: Node, values: dict[str, Any]) -> dict[str, Any]:
    """What a node makes, by name; where it has a kernel in order, as the kernel makes
    it and torch calls rely on.
    """
    # Kernels write in row-major order, and a torch call behind may read strides.
    made = results_of(
        node.op.reference([values[name] for name in node.inputs], node, plan.quants)
    )
    return dict(
        zip(node.makes, made if node.in_torch else map(in_order, made), strict=False)
    )


def results_of(made: Any) -> list[Any]:
    """The tensors of a call's result in order, as the capture named them."""
    if isinstance(made, Tensor):
        return [made]
    # None and numbers among the results are no values of a plan.
    if not isinstance(made, (tuple, list)):
        return []
    return [tensor for item in made for tensor in results_of(item)]


def _as(dtype: torch.dtype | None, constant: Tensor) -> Tensor:
    return (
        constant
        if dtype is None or not constant.is_floating_point()
        else constant.to(dtype)
    )
