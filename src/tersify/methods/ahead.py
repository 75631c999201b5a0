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


def affordable(latents: Sequence[Tensor]) -> bool:
    """Whether there is memory for a second copy of them all."""
    return sum(latent.numel() for latent in latents) <= MOST_AHEAD


def may_make_ahead(latents: Sequence[Tensor]) -> bool:
    """Whether it pays and can be afforded.

    Between several ranks nothing is made ahead: gradients must come one by one, to overlap with their exchange.
    """
    return bool(latents) and not ranks.together() and affordable(latents)


class Ahead:
    """A weight computed before it is asked for, and good until its gradient comes or its latent changes.

    Until then, since activation checkpointing asks a second time and must get what it got. A compiled network
    computes its own weights and never asks, so nothing is computed for it again.

    `castable` says that only layers read the weight that autocast casts for, and that it is exact in any type: then
    it is made at once in the type that autocast made of the last one, `cast`, which spares a cast for each.
    """

    __slots__ = ("_device", "_is_cast", "_mold", "_pointer", "_version", "_weight", "cast", "castable", "wanted")

    def __init__(self, *, castable: bool = False) -> None:
        self._weight: Tensor | None = None
        self._is_cast = False
        self._version = self._pointer = -1  # the latent's: one changes with edits in place, one with conversions
        self._device = ""
        self._mold: Tensor | None = None
        self.castable = castable
        self.cast: torch.dtype | None = None
        self.wanted = True

    def set(self, weight: Tensor, latent: Tensor) -> None:
        """Keep the weight made of this latent, in the type `cast` where there is one."""
        if (pointer := latent.data_ptr()) != self._pointer:
            self._pointer, self._device = pointer, latent.device.type
        self._weight, self._version = weight, latent._version
        self._is_cast = self.cast is not None
        self.wanted = False

    def get(self, latent: Tensor) -> Tensor | None:
        """Every layer asks in every step: each look at a tensor here counts."""
        self.wanted = True
        weight = self._weight
        try:
            if weight is not None and latent._version == self._version and latent.data_ptr() == self._pointer:
                if not self.castable:
                    return weight
                if torch.is_autocast_enabled(self._device):
                    if not self._is_cast:
                        self._learn(latent)
                    return weight
                if not self._is_cast:
                    return weight
            self._weight = None
            self._learn(latent)
        except RuntimeError:  # a stand-in without memory of its own, as torch.func puts in the latent's place
            pass
        return None

    def _learn(self, latent: Tensor) -> None:
        """What autocast makes of the weight, where it is on."""
        device = latent.device.type
        casts = self.castable and latent.dtype is torch.float32 and torch.is_autocast_enabled(device)
        self.cast = torch.get_autocast_dtype(device) if casts else None

    def drop(self) -> None:
        self._weight = None

    def mold(self, latent: Tensor) -> Tensor:
        """Memory for the weight in the type `cast`, the same in every step."""
        mold = self._mold
        if mold is None or mold.dtype is not self.cast or latent.data_ptr() != self._pointer:
            self._mold = mold = torch.empty_like(latent, dtype=self.cast)
        return mold

    def __deepcopy__(self, memo: dict[int, object]) -> Ahead:
        return Ahead(castable=self.castable)


def hand_to_keepers(
    latents: Sequence[Tensor],
    values: Sequence[Tensor],
    keepers: Sequence[Ahead],
    memory: Sequence[Tensor] | None = None,
) -> None:
    """Each keeper gets its value, as it is; backward the latent gets the value's gradient, and the keeper drops it.

    Values of another type come with `memory`, tensors like the latents, where their gradients are converted to.
    """
    with torch.enable_grad():
        weights = _apply(values, keepers, memory, *latents)
    for weight, latent, keeper in zip(weights, latents, keepers, strict=True):
        keeper.set(weight, latent)


class _StandIn(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        values: Sequence[Tensor],
        keepers: Sequence[Ahead],
        memory: Sequence[Tensor] | None,
        *latents: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.keepers, ctx.memory = keepers, memory
        ctx.dtype = None if memory is None else memory[0].dtype
        return tuple(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        keepers, memory, dtype = ctx.keepers, ctx.memory, ctx.dtype
        ctx.memory = None  # whoever gets it now keeps it
        passed = list(gradients)
        come = [i for i, gradient in enumerate(gradients) if gradient is not None]
        for i in come:
            keepers[i].drop()
        if come and dtype is not None:
            cast: Sequence[Tensor]
            if torch.is_grad_enabled() or memory is None:  # a graph is to follow the cast, or a second backward comes
                cast = [gradients[i].to(dtype) for i in come]  # type: ignore[union-attr]
            else:
                cast = [memory[i] for i in come]
                torch._foreach_copy_(cast, [gradients[i] for i in come])  # type: ignore[misc]
            for i, gradient in zip(come, cast, strict=True):
                passed[i] = gradient
        return None, None, None, *passed


# Past the look for functorch's transforms, within which no step of training begins.
_apply: Any = super(torch.autograd.Function, _StandIn).apply
