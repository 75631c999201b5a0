"""The masked tensors of all layers made in one go, when a step begins: an eager step on a GPU is bound by the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tersify.methods.ahead import Ahead, may_make_ahead
from tersify.methods.base import Site
from tersify.methods.energy.gates import GateTransform


def mask_ahead(pairs: Sequence[tuple[Site, GateTransform]]) -> None:
    """What the coming forward pass will ask for, of transforms that are alone on their weight and were asked before."""
    wanted = [(s.latent, t) for s, t in pairs if t.ahead.wanted and not t.covered and len(s.chain) == 1]
    latents = [latent for latent, _ in wanted]
    if not may_make_ahead(latents):
        return
    masks = [transform.keep(latent.ndim) for latent, transform in wanted]
    with torch.enable_grad():
        made = _Masked.apply(masks, [transform.ahead for _, transform in wanted], *latents)
    for weight, (latent, transform) in zip(made, wanted, strict=True):
        transform.ahead.set(weight, latent)


class _Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, masks: list[Tensor], keepers: list[Ahead], *latents: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.masks, ctx.keepers = masks, keepers
        return tuple(torch._foreach_mul(latents, masks))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        come = {index: gradient for index, gradient in enumerate(gradients) if gradient is not None}
        products = torch._foreach_mul([*come.values()], [ctx.masks[index] for index in come])
        passed = dict(zip(come, products, strict=True))
        for index in come:
            ctx.keepers[index].drop()
        return None, None, *(passed.get(index) for index in range(len(gradients)))
