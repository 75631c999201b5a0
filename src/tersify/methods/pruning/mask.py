"""The transforms of pruning: a mask and, where the score is learned or gathered in
training, the score.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tersify import ranks
from tersify.methods.base import Transform
from tersify.methods.weight_math import pack_kept
from tersify.tensor import CompressedTensor


class MaskTransform(Transform):
    """The latent where the mask is true, zero elsewhere."""

    mask: Tensor
    gain: float = 1.0

    def __init__(self, latent: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones_like(latent, dtype=torch.bool))

    @property
    def score_parameter(self) -> nn.Parameter | None:
        """What gets, `gain` times, each weight's gradient times the weight."""
        return None

    def worth(self) -> Tensor | None:
        return self.score_parameter

    def forward(self, latent: Tensor) -> Tensor:
        # The score adds zero to the value. Its gradient is ∂L/∂weight · latent, also
        # where the mask is zero (Sanh et al. 2020); a product with the mask would give
        # none there.
        masked, worth = torch.where(self.mask, latent, 0.0), self.worth()
        return (
            masked
            if worth is None
            else masked + (worth - worth.detach()) * latent.detach()
        )

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        return pack_kept(upstream, ranks.whole(self.mask))


class FactorMask(MaskTransform):
    """With a factor for each weight that was measured once."""

    factor: Tensor

    def __init__(self, latent: Tensor, factor: Tensor) -> None:
        super().__init__(latent)
        self.register_buffer("factor", factor.to(latent))


class LearnedMask(MaskTransform):
    """With a score that the optimizer moves: its gradient is the loss's gradient by the
    weight, times the weight.

    The gradient is that of the masked weight, so a pruned weight is scored too and can
    return (Sanh et al. 2020). With `lines` every row and column of a matrix has a score
    as well, which each of its weights adds to its own.
    """

    pressure: Tensor

    def __init__(
        self,
        latent: Tensor,
        *,
        gain: float,
        head_start: float = 0.0,
        lines: float = 0.0,
    ) -> None:
        super().__init__(latent)
        self.gain, self.lines = gain, lines
        # Divided by the gain that `worth` multiplies with, so the worth begins at
        # head_start · |w|.
        self.score = nn.Parameter(latent.detach().abs() * (head_start / gain))
        along = range(2) if lines and latent.ndim > 1 else ()
        self.line_scores = nn.ParameterList(
            latent.new_zeros(_line_of(latent, dim)) for dim in along
        )
        self.register_buffer("pressure", torch.zeros((), device=latent.device))

    def worth(self) -> Tensor:
        total = self.gain * self.score
        for score in self.line_scores:
            total = total + self.lines * score
        return total

    @property
    def score_parameter(self) -> nn.Parameter:
        return self.score


def _line_of(weight: Tensor, dim: int) -> list[int]:
    """The shape of one number for each index of that dimension."""
    return [size if at == dim else 1 for at, size in enumerate(weight.shape)]


class SoftMask(LearnedMask):
    """With a penalty on the scores' sigmoids, which grows to a wanted pressure."""

    def penalty(self, latent: Tensor) -> Tensor:
        return self.pressure * torch.sigmoid(self.worth()).mean()


class GatheredMask(MaskTransform):
    """With a running mean of |gradient · weight|, gathered by a hook in every backward
    pass.
    """

    score: Tensor
    DECAY = 0.9

    def __init__(self, latent: Tensor, start: Tensor | None = None) -> None:
        super().__init__(latent)
        self.register_buffer(
            "score", torch.zeros_like(latent) if start is None else start.clone()
        )
        # Always zero: it is there to receive, in every backward pass, the gradient
        # times the weight.
        self.probe = nn.Parameter(torch.zeros_like(latent))
        self.probe.register_post_accumulate_grad_hook(self._gather_)

    @property
    def score_parameter(self) -> nn.Parameter:
        return self.probe

    @torch.no_grad()
    def _gather_(self, probe: Tensor) -> None:
        assert probe.grad is not None
        # each has seen its own part of the batch; all must choose the same mask
        ranks.mean_over_ranks_([probe.grad])
        # |·| before the mean: gradients of opposite signs must not cancel to "worth
        # nothing".
        self.score.mul_(self.DECAY).add_(probe.grad.abs(), alpha=1 - self.DECAY)
        # No optimizer may move the probe away from zero.
        probe.grad = None
