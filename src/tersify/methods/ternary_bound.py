"""What a step does for ternary weights, done for all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tersify import ranks
from tersify.methods.base import Bound
from tersify.methods.flat_weights import FlatWeights, clip_, signs_beyond
from tersify.methods.relative_levels import all_levels
from tersify.methods.threshold import TernaryTransform
from tersify.methods.weight_math import straight_through


@dataclass(frozen=True, eq=False)
class TernaryBound(Bound):
    """Transforms that share their settings and, as long as nobody edits one of them,
    their threshold.
    """

    # the thresholds' versions when they were known to be equal
    _equal_at: list[int] = field(default_factory=list)

    def clip_(self) -> None:
        clip_([ranks.own_part(site.latent) for site in self.sites])

    def set_thresholds_(self, threshold: Tensor | float) -> None:
        thresholds = self.buffers("threshold")
        # One transfer to the device; the others are copied there.
        thresholds[0].fill_(threshold)
        if len(thresholds) > 1:
            torch._foreach_copy_(
                thresholds[1:], [thresholds[0]] * (len(thresholds) - 1)
            )
        self._equal_at[:] = [each._version for each in thresholds]

    def densities(self) -> list[Tensor]:
        """Of each weight the fraction that is not zero."""
        transforms = self.each(TernaryTransform)
        return [
            t.density(latent)
            for t, latent in zip(transforms, self.entering(), strict=True)
        ]

    def keep_sizes_(self, before: Sequence[Tensor]) -> None:
        """Scales grow as zeros come: each weight keeps the root mean square that it had
        with these densities.
        """
        for transform, density, now in zip(
            self.each(TernaryTransform), before, self.densities(), strict=True
        ):
            if transform.factor is not None:
                # The root mean square of a ternary weight is factor · √density.
                transform.factor.start.mul_((density / now).sqrt())

    def _one_threshold(self) -> Tensor | None:
        """The threshold of all of them, or None where somebody gave them several."""
        thresholds = self.buffers("threshold")
        versions = [each._version for each in thresholds]
        # Comparing numbers would wait for a GPU in every step, so it is done only after
        # somebody wrote to one of them.
        if versions != self._equal_at:
            if bool((torch.stack(thresholds) != thresholds[0]).any()):
                return None
            self._equal_at[:] = versions
        return thresholds[0]

    def ternarized(self, weights: FlatWeights) -> Tensor | tuple[Tensor, Tensor] | None:
        threshold = self._one_threshold()
        if threshold is None:
            return None
        transforms = self.each(TernaryTransform)
        first, latents = transforms[0], weights.values.detach()
        # Equal to TernaryTransform.pattern in every bit.
        pattern = signs_beyond(latents, threshold)
        # a clipped latent is inside, where all gradients pass (eq. 2)
        outside = first.saturate and not first.clip
        if first.factor is None:
            # A boolean gain keeps the gradient where it is true, which is eq. 2's
            # indicator.
            return (pattern, latents.abs() <= 1.0) if outside else pattern
        factors = all_levels(
            [t.factor for t in transforms if t.factor is not None], weights
        )
        passed = weights.values.clamp(-1.0, 1.0) if outside else weights.values
        per_channel = first.factor.start.ndim > 0
        return straight_through(pattern, passed) * weights.spread(
            factors, per_channel=per_channel
        )
