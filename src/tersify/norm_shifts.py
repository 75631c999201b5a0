"""Biases and batch norms that follow new weights: they move as far as the new weights
moved what they act on.

Statistics taken anew on a few batches would be those of the batches; these stay those
of training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tersify.batchnorm_statistics import is_adjustable
from tersify.calibration import Calibration
from tersify.modes import eval_mode

Moments = tuple[Tensor, Tensor]  # mean and variance of each channel
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def moments_of(model: nn.Module, calibration: Calibration) -> dict[str, list[Moments]]:
    """By name of a batch norm what enters it, by name of a layer with a bias what
    leaves it: call by call over all batches, in eval mode.
    """
    found: dict[str, list[Moments]] = {}

    def look(name: str, x: Tensor) -> None:
        found.setdefault(name, []).append(_moments(x, _axis_of(modules[name])))

    modules = dict(_followers(model))
    _run(model, calibration, look)
    return found


@torch.no_grad()
def follow_(
    model: nn.Module, before: Mapping[str, list[Moments]], calibration: Calibration
) -> None:
    """Move biases, and means and variances of batch norms, by what changed since
    `before`, which is of the same batches.

    Each is corrected before it acts, so that what comes later meets inputs that are
    right already.
    """
    known = {
        name: (_Norm if is_adjustable(module) else _Bias)(module, before[name])
        for name, module in _followers(model)
        if name in before
    }
    try:
        _run(
            model,
            calibration,
            lambda name, x: known[name].move_(x) if name in known else None,
        )
    except BaseException:
        for each in known.values():
            each.undo_()
        raise


class _Norm:
    """A batch norm: averages over the calls so far of how far its inputs moved."""

    def __init__(self, module: Any, before: list[Moments]) -> None:
        self.module, self._before, self._calls = module, before, 0
        self._mean = module.running_mean.clone()
        self._variance = module.running_var.clone()
        self._shift = torch.zeros_like(self._mean)
        self._spreads = [torch.zeros_like(self._variance) for _ in range(2)]

    def move_(self, x: Tensor) -> None:
        mean, variance = _moments(x, 1)
        old_mean, old_variance = self._before[self._calls]
        self._calls += 1
        self._shift += (mean - old_mean - self._shift) / self._calls
        for total, each in zip(self._spreads, (variance, old_variance), strict=True):
            total += each
        # ε keeps a channel without variance from dividing by zero.
        eps = self._calls * self.module.eps
        ratio = (self._spreads[0] + eps) / (self._spreads[1] + eps)
        self.module.running_mean.copy_(self._mean + self._shift)
        self.module.running_var.copy_(self._variance * ratio)

    def undo_(self) -> None:
        self.module.running_mean.copy_(self._mean)
        self.module.running_var.copy_(self._variance)


class _Bias:
    """A layer with a bias: the average over the calls so far of how far its outputs
    moved.
    """

    def __init__(self, module: Any, before: list[Moments]) -> None:
        self.module, self._before, self._calls = module, before, 0
        self._bias = module.bias.detach().clone()
        self._shift = torch.zeros_like(self._bias)
        self._axis = _axis_of(module)

    def move_(self, x: Tensor) -> Tensor:
        """The output as the corrected bias makes it."""
        applied = self._shift.clone()
        # of the weights alone: the output has the correction so far in it
        moved = _moments(x, self._axis)[0] + applied - self._before[self._calls][0]
        self._calls += 1
        self._shift += (moved - self._shift) / self._calls
        self.module.bias.copy_(self._bias - self._shift)
        wide = [1] * x.ndim
        wide[self._axis] = -1
        return x + (applied - self._shift).view(wide)

    def undo_(self) -> None:
        self.module.bias.copy_(self._bias)


def _axis_of(module: nn.Module) -> int:
    return -1 if isinstance(module, nn.Linear) else 1


def _moments(x: Tensor, axis: int) -> Moments:
    rows = x.detach().movedim(axis, 0).flatten(1).float()
    return rows.mean(1), rows.var(1, correction=0)


def _followers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        # A compressed bias has its levels.
        has_bias = (
            isinstance(module, _LAYERS)
            and module.bias is not None
            and not parametrize.is_parametrized(module, "bias")
        )
        if has_bias or is_adjustable(module):
            yield name, module


@torch.no_grad()
def _run(
    model: nn.Module, calibration: Calibration, look: Callable[[str, Tensor], Any]
) -> None:
    with _watched(model, look), eval_mode(model):
        for inputs, _ in calibration.pairs():
            model(inputs)


@contextmanager
def _watched(model: nn.Module, look: Callable[[str, Tensor], Any]) -> Iterator[None]:
    hooks = [_watch(name, module, look) for name, module in _followers(model)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _watch(name: str, module: nn.Module, look: Callable[[str, Tensor], Any]) -> Any:
    if isinstance(module, _LAYERS):
        return module.register_forward_hook(lambda _, args, out: look(name, out))
    return module.register_forward_pre_hook(
        lambda _, args: (look(name, args[0]), None)[1]
    )
