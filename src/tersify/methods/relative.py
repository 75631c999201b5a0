"""Learned levels, kept relative to where they start so that one learning rate fits every layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tersify.methods.base import scale_gradient


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

    @torch.no_grad()
    def keep_positive_(self, least: float = 1e-3) -> None:
        self.factor.clamp_(min=least)
