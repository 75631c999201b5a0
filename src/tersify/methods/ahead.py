"""Weights of all sites made together before the forward pass asks for them one by one.

An eager step on a GPU is bound by the host: a few launches for all sites cost less than a few for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tersify import ranks

# Weights made ahead wait in memory, all at once. A network of more is bound by its arithmetic, not by launches.
MOST_AHEAD = 1 << 26


def may_make_ahead(latents: Sequence[Tensor]) -> bool:
    """Whether it pays and can be afforded.

    Between several ranks nothing is made ahead: gradients must come one by one, to overlap with their exchange.
    """
    return bool(latents) and not ranks.together() and sum(latent.numel() for latent in latents) <= MOST_AHEAD


class Ahead:
    """A weight computed before it is asked for, and good until its gradient comes or its latent changes.

    Until then, since activation checkpointing asks a second time and must get what it got. A compiled network
    computes its own weights and never asks, so nothing is computed for it again.
    """

    def __init__(self) -> None:
        self._weight: Tensor | None = None
        self._made_from: tuple[object, ...] = ()
        self.wanted = True

    def set(self, weight: Tensor, latent: Tensor) -> None:
        self._weight, self._made_from = weight, _state(latent)
        self.wanted = False

    def get(self, latent: Tensor) -> Tensor | None:
        self.wanted = True
        try:
            state = _state(latent)
        except RuntimeError:  # a stand-in without memory of its own, as torch.func puts in the latent's place
            return None
        if self._weight is not None and self._made_from != state:
            self._weight = None
        return self._weight

    def drop(self) -> None:
        self._weight = None

    def __deepcopy__(self, memo: dict[int, object]) -> Ahead:
        return Ahead()


def _state(latent: Tensor) -> tuple[object, ...]:
    """Changes with every edit in place, conversion and move."""
    return latent._version, latent.data_ptr()


def standing_for(latents: Sequence[Tensor], values: Sequence[Tensor], keepers: Sequence[Ahead]) -> Sequence[Tensor]:
    """Exactly the values forward; backward each latent gets its value's gradient, and the value's keeper drops it."""
    with torch.enable_grad():
        return _StandIn.apply(values, keepers, *latents)


class _StandIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Sequence[Tensor], keepers: Sequence[Ahead], *latents: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.keepers = keepers
        return tuple(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        for keeper, gradient in zip(ctx.keepers, gradients, strict=True):
            if gradient is not None:
                keeper.drop()
        return None, None, *gradients
