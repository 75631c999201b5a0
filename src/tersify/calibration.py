"""Calibration: a little data that says how much each weight matters to the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tersify.methods import Site


@dataclass(frozen=True)
class Calibration:
    """Batches (inputs, targets) and the loss of the network's outputs; small batches tell more than large ones."""

    batches: Iterable[tuple[Any, Any]]
    loss: Callable[[Any, Any], Tensor] = F.cross_entropy

    @classmethod
    def of(cls, given: Calibration | Iterable[tuple[Any, Any]]) -> Calibration:
        return given if isinstance(given, Calibration) else cls(given)


def squared_gradients(model: nn.Module, sites: Sequence[Site], calibration: Calibration) -> list[Tensor]:
    """The mean over the batches of each weight's squared gradient, with the network in eval mode."""
    latents = [site.latent for site in sites]
    sums = [torch.zeros_like(latent) for latent in latents]
    was_training = model.training
    model.eval()
    batches = 0
    try:
        with torch.enable_grad():
            for inputs, targets in calibration.batches:
                loss = calibration.loss(model(inputs), targets)
                for total, gradient in zip(sums, torch.autograd.grad(loss, latents), strict=True):
                    total += gradient.square()
                batches += 1
    finally:
        model.train(was_training)
    if not batches:
        raise ValueError("calibration holds no batch; give at least one pair (inputs, targets)")
    return [total / batches for total in sums]
