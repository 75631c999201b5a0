"""A compiled network beside the module it came from: what both return, and what both
leave behind, compared.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

FP32_BOUND = 2e-5  # of the largest output
# products of such numbers are zero for one order of operations and not for another
SMALLEST = 1e-30


class MismatchError(AssertionError):
    """The compiled network answered, and wrongly."""


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything that is no container, with the way to it; containers give their type,
    so that kinds are compared.
    """
    if isinstance(value, Mapping):
        yield path, type(value)
        for key, inner in value.items():
            yield from leaves(inner, f"{path}[{key!r}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield path, type(value)
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, (tuple, list)):
        yield path, type(value)
        for place, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{place}]")
    else:
        yield path, value


def error_of(given: Tensor, wanted: Tensor, least: float = 0.0) -> float:
    """The largest error as a fraction of the largest finite value; infinite where a NaN or
    an infinity is elsewhere.

    `least`: what the largest value counts as where it is smaller.
    """
    if not wanted.numel():
        return 0.0
    if wanted.is_complex():
        given, wanted = (torch.view_as_real(x.resolve_conj()) for x in (given, wanted))
    if not wanted.is_floating_point():
        return 0.0 if torch.equal(given, wanted) else float("inf")
    given, wanted = given.double(), wanted.double()
    finite = wanted.isfinite()
    if not torch.equal(given.isfinite(), finite) or not torch.equal(
        given.isnan(), wanted.isnan()
    ):
        return float("inf")
    if not torch.equal(given[wanted.isinf()], wanted[wanted.isinf()]):
        return float("inf")
    if not finite.any():
        return 0.0
    largest = max(least, wanted[finite].abs().max().item())
    error = (given[finite] - wanted[finite]).abs().max().item()
    if largest < SMALLEST:
        return 0.0 if error < SMALLEST else float("inf")
    return error / largest


def compare(
    given: Any,
    wanted: Any,
    bound: float = FP32_BOUND,
    what: str = "output",
    slack: float = 0.0,
    least: Mapping[str, float] | None = None,
) -> float:
    """The worst error of all tensors, which is at most the bound; kinds, shapes and
    types are equal.

    `slack` is what torch itself may be wrong by, where the caller has measured it;
    `least` holds for each part the value that errors are measured by where its own
    largest is smaller.
    """
    ours, theirs = list(leaves(given)), list(leaves(wanted))
    if [path for path, _ in ours] != [path for path, _ in theirs]:
        raise MismatchError(
            f"{what}: the parts are {[p for p, _ in ours]}, not {[p for p, _ in theirs]}"
        )
    worst = 0.0
    for (path, mine), (_, right) in zip(ours, theirs, strict=True):
        if not isinstance(right, Tensor):
            if (
                isinstance(mine, Tensor)
                or type(mine) is not type(right)
                or mine != right
            ):
                raise MismatchError(f"{what}{path} is {mine!r}, not {right!r}")
            continue
        if not isinstance(mine, Tensor):
            raise MismatchError(
                f"{what}{path} is a {type(mine).__name__}, not a tensor"
            )
        if mine.shape != right.shape or mine.dtype != right.dtype:
            raise MismatchError(
                f"{what}{path} is {tuple(mine.shape)} {mine.dtype}, not {tuple(right.shape)} {right.dtype}"
            )
        error = error_of(mine.detach(), right.detach(), (least or {}).get(path, 0.0))
        if not error <= bound + slack:
            raise MismatchError(
                f"{what}{path} of {tuple(right.shape)} is off by {error:.3g} of its largest value"
            )
        worst = max(worst, error)
    return worst


def check(
    fast: nn.Module,
    model: nn.Module,
    *inputs: Any,
    bound: float = FP32_BOUND,
    **named: Any,
) -> float:
    """Calls both; the inputs that a call writes into and the buffers that it counts in
    are compared as well.

    The module's turn is on copies of itself and of the inputs, since the compiled
    network may share its buffers.
    """
    twin = copy.deepcopy(model).eval()
    their_inputs, their_named = copy.deepcopy((inputs, named))
    with torch.no_grad():
        wanted = twin(*their_inputs, **their_named)
        given = fast(*inputs, **named)
    worst = compare(given, wanted, bound)
    compare((inputs, named), (their_inputs, their_named), bound, "input after the call")
    compare(
        dict(model.named_buffers()),
        dict(twin.named_buffers()),
        bound,
        "buffer after the call",
    )
    return worst


def unchanged_by_compile(model: nn.Module, before: Mapping[str, Tensor]) -> bool:
    """Every parameter and buffer still has the value it had in `before`, bit for bit."""
    now = model.state_dict()
    return now.keys() == before.keys() and all(
        torch.equal(now[name], before[name]) for name in now
    )


def thinned_(model: nn.Module, zeros: float = 0.9, ternary: bool = False) -> nn.Module:
    """That fraction of every weight's smallest values becomes zero; ternary: the rest
    becomes ± their mean.
    """
    for parameter in model.parameters():
        if parameter.ndim < 2 or not parameter.is_floating_point():
            continue
        data = parameter.data
        kept = (
            data.abs()
            > data.abs().flatten().kthvalue(max(1, int(zeros * data.numel()))).values
        )
        if ternary and kept.any():
            data.copy_(data.sign() * data[kept].abs().mean())
        data.mul_(kept)
    return model
