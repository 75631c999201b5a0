"""Learned levels, kept relative to where they start so that one learning rate fits
every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from tersify.methods.base import Bound
from tersify.methods.flat_weights import FlatWeights
from tersify.methods.weight_math import scale_gradient


class RelativeLevels(nn.Module):
    """`start × factor` with a learned factor that begins at 1.

    A level's gradient is a sum over the `members` weights that use it; dividing by
    √members keeps it comparable with a weight's own gradient (without it the codes can
    collapse to one level).
    """

    start: Tensor

    def __init__(self, start: Tensor, *, members: int) -> None:
        super().__init__()
        self.gain = max(members, 1) ** -0.5
        self.register_buffer("start", start.detach().clone().contiguous())
        self.factor = nn.Parameter(torch.ones_like(self.start))

    def forward(self) -> Tensor:
        # The factor is near 1 for every layer, so one learning rate moves all levels by
        # a like part of themselves.
        return self.start * scale_gradient(self.factor, self.gain)


LEAST_FACTOR = 1e-3


def levels_of(bound: Bound, name: str) -> list[RelativeLevels]:
    """The levels that each transform holds under this attribute name."""
    # Past the modules' own look-ups, here and below, which would be half of the time a
    # step takes for them.
    return [
        cast("RelativeLevels", transform._modules[name])
        for transform in bound.transforms
    ]


def keep_positive_(every: Sequence[RelativeLevels]) -> None:
    torch._foreach_clamp_min_(
        [cast("Tensor", levels._parameters["factor"]) for levels in every], LEAST_FACTOR
    )


@torch.no_grad()
def levels_now(every: Sequence[RelativeLevels]) -> Tensor:
    """The levels of each, one row for each: all have as many."""
    starts = [levels.start for levels in every]
    return torch.stack(torch._foreach_mul(starts, [levels.factor for levels in every]))


class AllLevels:
    """The levels of all of them end to end, and the way back from a level's gradient to
    its factor's.
    """

    def __init__(self, every: Sequence[RelativeLevels], weights: FlatWeights) -> None:
        gains = weights.constant(
            "gains",
            lambda: torch.cat([torch.full((e.start.numel(),), e.gain) for e in every]),
        )
        starts = [cast("Tensor", e._buffers["start"]) for e in every]
        self._starts = weights.remembered(
            "starts", starts, lambda: torch.cat([start.reshape(-1) for start in starts])
        )
        factor = weights.learn(
            [cast("nn.Parameter", e._parameters["factor"]) for e in every]
        )
        self._gains = gains.to(factor.dtype)
        self.values = self._starts * factor.detach()

    def to_factors(self, gradient: Tensor) -> Tensor:
        # Chain rule of start · factor, with the gain of `RelativeLevels.forward`.
        return gradient.reshape(-1) * self._starts * self._gains
