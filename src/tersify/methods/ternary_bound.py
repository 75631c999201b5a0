"""What a step does for ternary weights, done for all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tersify import ranks
from tersify.methods.base import Bound
from tersify.methods.flat_weights import FlatWeights, Prepared, clip_, signs_beyond
from tersify.methods.relative_levels import AllLevels, levels_of
from tersify.methods.threshold import TernaryTransform, leaving


@dataclass(frozen=True, eq=False)
class TernaryBound(Bound):
    """Transforms that share their settings and their threshold, where that is held back
    for none of them.
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

    def hold_back_(self, fraction: float) -> None:
        """No threshold leaves less than this fraction of what enters its transform."""
        for threshold, entering in zip(
            self.buffers("threshold"), self.entering(), strict=True
        ):
            # A network without memory has no numbers, nor has an empty weight.
            if entering.numel() and not entering.is_meta:
                threshold.clamp_(max=leaving(entering, fraction))

    def largest_threshold(self) -> float:
        return float(torch.stack(self.buffers("threshold")).max())

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

    def _thresholds(self, weights: FlatWeights) -> Tensor:
        """The threshold of all of them or, where they have several, of each number."""
        thresholds = self.buffers("threshold")
        if [each._version for each in thresholds] == self._equal_at:
            return thresholds[0]

        def compared() -> Tensor:
            every = torch.stack(thresholds)
            if bool((every == every[0]).all()):
                return thresholds[0]
            return weights.spread(every)

        # Comparing numbers would wait for a GPU in every step, so it is done only after
        # somebody wrote to one of them.
        made: Tensor = weights.remembered("thresholds", thresholds, compared)
        return made

    @torch.no_grad()
    def ternarized(
        self, weights: FlatWeights
    ) -> Tensor | tuple[Tensor, Tensor] | Prepared:
        first, latents = self.transforms[0], weights.values
        assert isinstance(first, TernaryTransform)
        # Equal to TernaryTransform.pattern in every bit.
        pattern = signs_beyond(latents, self._thresholds(weights))
        # A clipped latent is inside, where all gradients pass. A boolean gain keeps
        # the gradient where it is true, which is eq. 2's indicator.
        inside = latents.abs() <= 1.0 if first.saturate and not first.clip else None
        if first.factor is None:
            return pattern if inside is None else (pattern, inside)
        return self._scaled(pattern, inside, first.factor.start.ndim > 0, weights)

    def _scaled(
        self,
        pattern: Tensor,
        inside: Tensor | None,
        per_channel: bool,
        weights: FlatWeights,
    ) -> Prepared:
        """The pattern times the factor of each tensor, or of each output channel."""
        levels = AllLevels(levels_of(self, "factor"), weights)
        factors = weights.spread(levels.values, per_channel=per_channel)

        def gradient(given: Tensor) -> Tensor:
            sums = weights.sums(given * pattern, per_channel=per_channel)
            return levels.to_factors(sums)

        gain = factors if inside is None else torch.where(inside, factors, 0.0)
        return Prepared(pattern * factors, gain, gradient)
