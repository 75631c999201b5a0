"""What a compiled network may be shown: examples, inputs and calibration batches, checked before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tersify.runtime.plan import Plan


def example_tensors(example: Any) -> tuple[Tensor, ...]:
    """The example as a tuple of its tensors."""
    given = (example,) if isinstance(example, Tensor) else example
    if not isinstance(given, (tuple, list)) or not given or not all(_is_dense(x) for x in given):
        raise ValueError("the example must be a dense CPU tensor, or a tuple of them")
    for x in given:
        if x.ndim < 1 or len(x) == 0:
            raise ValueError(f"the example needs a batch in front, got shape {tuple(x.shape)}")
    return tuple(given)


def calibration_batches(plan: Plan, calibration: Any) -> list[tuple[Tensor, ...]] | None:
    """Every batch as a tuple of inputs that the plan takes; None where none were given."""
    if calibration is None:
        return None
    if not isinstance(calibration, Iterable):
        raise ValueError(f"calibration must be a tensor, or batches of inputs, got a {type(calibration).__name__}")
    shown = [calibration] if isinstance(calibration, Tensor) else list(calibration)
    if not shown:
        raise ValueError("calibration holds no batch; give one, or leave it out")
    batches = [tuple(batch) if isinstance(batch, (tuple, list)) else (batch,) for batch in shown]
    for batch in batches:
        try:
            check_inputs(plan, batch)
        except ValueError as problem:
            raise ValueError(f"a calibration batch does not fit: {problem}") from None
    return batches


def check_inputs(plan: Plan, inputs: Sequence[Any]) -> None:
    if len(inputs) != len(plan.inputs):
        raise ValueError(f"the network was compiled for {len(plan.inputs)} inputs, got {len(inputs)}")
    for given, wanted in zip(inputs, plan.inputs, strict=True):
        if not isinstance(given, Tensor):
            raise ValueError(f"input {wanted.name!r} must be a tensor, got {type(given).__name__}")
        if not _is_dense(given):
            raise ValueError(
                f"input {wanted.name!r} must be a dense CPU tensor, got {given.layout} on {given.device}; "
                "use .cpu() or .to_dense()"
            )
        if given.dtype != wanted.dtype:
            raise ValueError(f"input {wanted.name!r} must be {wanted.dtype}, got {given.dtype}; convert it with .to()")
        if given.shape[1:] != wanted.shape:
            raise ValueError(
                f"input {wanted.name!r} has shape {tuple(given.shape)}, the example had (batch, "
                f"{', '.join(map(str, wanted.shape))}); compile again for another size"
            )
        if given.shape[0] != inputs[0].shape[0]:
            raise ValueError(f"the inputs have different batch sizes: {len(inputs[0])} and {len(given)}")
        if plan.batch is not None and given.shape[0] != plan.batch:
            raise ValueError(f"this network could only be captured for batches of {plan.batch}, got {len(given)}")


def check_runs(model: nn.Module, example: Sequence[Tensor]) -> None:
    """The module itself takes the example: what its forward raises becomes one sentence."""
    try:
        with torch.no_grad():
            model(*example)
    except Exception as error:  # anybody's forward: what it raises is not known here
        sizes = " and ".join("×".join(map(str, x.shape)) for x in example)
        why = str(error).strip().partition("\n")[0][:200]
        raise ValueError(
            f"{type(model).__name__} does not take an input of {sizes} ({type(error).__name__}: {why}); "
            "give one of the shape and type that it takes"
        ) from error


def _is_dense(given: Any) -> bool:
    return isinstance(given, Tensor) and given.layout == torch.strided and given.device.type == "cpu"
