"""Other ways to compute for a while: eval mode, and CUDA products in full precision."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Inside, every module is in eval mode; afterwards each has its own mode again, as
    a frozen batch norm must.
    """
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


@contextlib.contextmanager
def without_tf32() -> Iterator[None]:
    """Inside, CUDA multiplies float32 as it is; what was chosen before comes back.
    Elsewhere nothing changes.
    """
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    exact: bool | str = False
    settings, name = [matmul, cudnn], "allow_tf32"
    # newer torch, which refuses a mix of both ways to say it
    if hasattr(matmul, "fp32_precision"):
        settings, name, exact = (
            [matmul, cudnn.conv, cudnn.rnn],
            "fp32_precision",
            "ieee",
        )
    before = [getattr(setting, name) for setting in settings]
    try:
        for setting in settings:
            setattr(setting, name, exact)
        yield
    finally:
        for setting, value in zip(settings, before, strict=True):
            setattr(setting, name, value)
