"""Batch norms' statistics taken anew: those of training belong to weights that have
changed since.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tersify.calibration import Calibration
from tersify.modes import eval_mode

# of a channel: fewer tell its variance worse than the running average of training does
LEAST_VALUES = 128
_BatchNorm = nn.modules.batchnorm._BatchNorm


@torch.no_grad()
def recalibrate_(model: nn.Module, calibration: Calibration) -> None:
    """Mean and variance of every batch norm become their averages over the calibration
    batches.

    All else is in eval mode. A batch norm whose γ and β are frozen is left alone, and
    so is one that no batch reaches.
    """
    each = [
        _Statistics(name, module)
        for name, module in model.named_modules()
        if is_adjustable(module)
    ]
    if not each:
        return
    try:
        with eval_mode(model):
            for one in each:
                one.begin_()
            for inputs, _ in calibration.pairs():
                model(inputs)
    except BaseException:
        for one in each:
            one.end_(keep=False)
        raise
    # All or none: norms with new statistics beside norms with old ones fit no weights
    # at all.
    reached = [one for one in each if one.values]
    short = min(reached, key=lambda one: one.values, default=None)
    enough = short is not None and short.values >= LEAST_VALUES
    for one in each:
        one.end_(keep=enough and one.values > 0)
    if short is not None and not enough:
        warnings.warn(
            f"the calibration batches hold {short.values} values for each channel of {short.name!r}, and new "
            f"statistics of a batch norm need {LEAST_VALUES}; all keep those of training: give more batches",
            stacklevel=3,
        )


@contextlib.contextmanager
def recalibrated(model: nn.Module, calibration: Calibration) -> Iterator[None]:
    """Inside, batch norms have the statistics that `recalibrate_` gives them;
    afterwards their own again.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    before = [
        (buffer, buffer.clone())
        for norm in norms
        for buffer in norm.buffers(recurse=False)
    ]
    recalibrate_(model, calibration)
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)


def is_adjustable(module: nn.Module) -> bool:
    if not isinstance(module, _BatchNorm) or module.running_mean is None:
        return False
    own = list(module.parameters(recurse=False))
    # A frozen norm is meant to keep its statistics, as in fine-tuned detectors.
    return not own or any(parameter.requires_grad for parameter in own)


class _Statistics:
    """One batch norm, which for a while normalizes by each batch itself, as in
    training, and averages over all.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        assert isinstance(module, _BatchNorm)
        self.name, self.module, self.values = name, module, 0
        self._buffers = {
            key: t.clone() for key, t in module.named_buffers(recurse=False)
        }
        self._momentum, self._was_training = module.momentum, module.training
        self._hook: Any = None

    def begin_(self) -> None:
        self.module.reset_running_stats()
        # None makes torch average all batches alike; a momentum would favour the last
        # ones.
        self.module.momentum = None  # a plain average
        self.module.training = True
        self._hook = self.module.register_forward_pre_hook(self._count)

    def _count(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        # Values of each channel: everything but dimension 1.
        self.values += args[0].numel() // args[0].shape[1]

    def end_(self, *, keep: bool) -> None:
        if self._hook is None:
            return
        self._hook.remove()
        self.module.momentum, self.module.training = self._momentum, self._was_training
        kept = ("running_mean", "running_var") if keep else ()
        for key, buffer in self.module.named_buffers(recurse=False):
            if key not in kept:
                buffer.copy_(self._buffers[key])
