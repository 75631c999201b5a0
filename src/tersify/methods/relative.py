"""Learned levels, kept relative to where they start so that one learning rate fits every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors

from tersify.methods.base import scale_gradient
from tersify.methods.flat import FlatWeights


class RelativeLevels(nn.Module):
    """`start × factor` with a learned factor that begins at 1.

    A level's gradient is a sum over the `members` weights that use it; dividing by √members keeps
    it comparable with a weight's own gradient (without it the codes can collapse to one level).
    """

    start: Tensor

    def __init__(self, start: Tensor, *, members: int) -> None:
        super().__init__()
        self.gain = max(members, 1) ** -0.5
        self.register_buffer("start", start.detach().clone().contiguous())
        self.factor = nn.Parameter(torch.ones_like(self.start))

    def forward(self) -> Tensor:
        return self.start * scale_gradient(self.factor, self.gain)


LEAST_FACTOR = 1e-3


def keep_positive_(every: Sequence[RelativeLevels]) -> None:
    torch._foreach_clamp_min_([levels.factor for levels in every], LEAST_FACTOR)


def all_levels(every: Sequence[RelativeLevels], weights: FlatWeights) -> Tensor:
    """The levels of all of them end to end, with the same values and gradients as one by one."""
    gains = weights.constant("gains", lambda: torch.cat([torch.full((e.start.numel(),), e.gain) for e in every]))
    # Past the modules' own look-ups, which would be half of the time this takes.
    start = _flatten_dense_tensors([e._buffers["start"] for e in every])
    factor = weights.learn([cast("nn.Parameter", e._parameters["factor"]) for e in every])
    return start * scale_gradient(factor, gains.to(factor.dtype))
