"""Weights of all sites made together before the forward pass asks for them one by one.

An eager step on a GPU is bound by the host: a few launches for all sites cost less than a few for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    it is made at once in the type that autocast made of the last one, which spares a cast for each.
    """

    def __init__(self, *, castable: bool = False) -> None:
        self._weight: Tensor | None = None
        self._made_from: tuple[object, ...] = ()
        self._mold: Tensor | None = None
        self._cast: torch.dtype | None = None
        self.castable = castable
        self.wanted = True

    def set(self, weight: Tensor, latent: Tensor) -> None:
        self._weight, self._made_from = weight, _state(latent)
        self.wanted = False

    def get(self, latent: Tensor) -> Tensor | None:
        self.wanted = True
        try:
            state = _state(latent)
            self._cast = _autocast_type(latent) if self.castable else None
        except RuntimeError:  # a stand-in without memory of its own, as torch.func puts in the latent's place
            return None
        weight = self._weight
        if weight is not None and (self._made_from != state or weight.dtype != (self._cast or latent.dtype)):
            self._weight = weight = None
        return weight

    def drop(self) -> None:
        self._weight = None

    def mold(self, value: Tensor) -> Tensor | None:
        """Memory for the value in the type it is wanted in, the same in every step; None where that is its own type."""
        if self._cast is None:
            return None
        mold = self._mold
        if mold is None or mold.dtype != self._cast or mold.device != value.device or mold.stride() != value.stride():
            self._mold = mold = torch.empty_like(value, dtype=self._cast)
        return mold

    def __deepcopy__(self, memo: dict[int, object]) -> Ahead:
        return Ahead(castable=self.castable)


def _autocast_type(latent: Tensor) -> torch.dtype | None:
    """What autocast will make of a weight like this one, where it is on."""
    device = latent.device.type
    if latent.dtype != torch.float32 or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def _state(latent: Tensor) -> tuple[object, ...]:
    """Changes with every edit in place, conversion and move."""
    return latent._version, latent.data_ptr()


def standing_for(latents: Sequence[Tensor], values: Sequence[Tensor], keepers: Sequence[Ahead]) -> None:
    """Each keeper gets its value, as it is; backward the latent gets the value's gradient, and the keeper drops it."""
    with torch.enable_grad():
        weights = _StandIn.apply(values, keepers, *latents)
    for weight, latent, keeper in zip(weights, latents, keepers, strict=True):
        keeper.set(weight, latent)


def signs_together(values: Sequence[Tensor], keepers: Sequence[Ahead]) -> list[Tensor]:
    """The sign of each value in the type its keeper wants; the values are used up.

    Through a mold of that type, since one call then makes the memory of all signs.
    """
    molds = [keeper.mold(value) for keeper, value in zip(keepers, values, strict=True)]
    pairs = [(mold, value) for mold, value in zip(molds, values, strict=True) if mold is not None]
    kept = [value for mold, value in zip(molds, values, strict=True) if mold is None]
    signs: Iterator[Tensor] = iter(())
    if pairs:
        filled = [mold for mold, _ in pairs]
        torch._foreach_copy_(filled, [value for _, value in pairs])
        signs = iter(torch._foreach_sign(filled))
    if kept:
        torch._foreach_sign_(kept)
    return [value if mold is None else next(signs) for mold, value in zip(molds, values, strict=True)]


def cast_together(tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    """Each tensor in its type; those that differ are converted in one go, but where a graph is to follow it."""
    if torch.is_grad_enabled():
        return [tensor.to(dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)]
    made = [
        t if t.dtype == dtype else torch.empty_like(t, dtype=dtype) for t, dtype in zip(tensors, dtypes, strict=True)
    ]
    pairs = [(new, old) for new, old in zip(made, tensors, strict=True) if new is not old]
    if pairs:
        torch._foreach_copy_([new for new, _ in pairs], [old for _, old in pairs])
    return made


class _StandIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Sequence[Tensor], keepers: Sequence[Ahead], *latents: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.keepers, ctx.dtypes = keepers, [latent.dtype for latent in latents]
        return tuple(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        cast = cast_together([gradients[i] for i in there], [ctx.dtypes[i] for i in there])  # type: ignore[misc]
        passed: list[Tensor | None] = [None] * len(gradients)
        for i, gradient in zip(there, cast, strict=True):
            ctx.keepers[i].drop()
            passed[i] = gradient
        return None, None, *passed
