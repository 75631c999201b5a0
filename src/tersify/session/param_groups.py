"""The groups of parameters that an optimizer gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn


def param_groups(
    ordered: Sequence[nn.Parameter],
    holders: Sequence[nn.Module],
    defaults: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Weights and latents, `ordered` as in the plain network, and without decay what
    the methods' own modules learn.
    """
    learned = {
        id(p): p
        for holder in holders
        for p in holder.parameters()
        if p.is_floating_point()
    }
    weights = [p for p in ordered if p.requires_grad and id(p) not in learned]
    groups: list[dict[str, Any]] = [{"params": weights, **defaults}]
    if learned:
        # Many tensors of a few numbers each: one fused call for all of them spares a
        # CPU most of an optimizer's time. Off the CPU torch's optimizers take them
        # together by themselves.
        on_cpu = all(p.is_cpu for p in learned.values())
        fused = {"fused": True} if on_cpu else {}
        own = {**fused, **defaults, "weight_decay": 0.0}
        groups.append({"params": list(learned.values()), **own})
    return groups
