"""Batch-norm statistics measured again, for a network whose layers are not those that trained with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from tersify.modes import eval_mode


@contextlib.contextmanager
def reestimated(model: nn.Module, batches: Iterable[Tensor]) -> Iterator[None]:
    """Inside, every batch norm has the mean statistics of these batches, as the network is now; afterwards its own.

    All layers but the batch norms are in eval mode while they are measured.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    before = [(norm.momentum, {name: t.clone() for name, t in norm.named_buffers()}) for norm in norms]
    try:
        with eval_mode(model), torch.no_grad():
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # the plain mean over all batches
                norm.training = True
            for images in batches:
                model(images)
            for norm in norms:
                norm.training = False
        yield
    finally:
        for norm, (momentum, buffers) in zip(norms, before, strict=True):
            norm.momentum = momentum
            for name, buffer in norm.named_buffers():
                buffer.copy_(buffers[name])
