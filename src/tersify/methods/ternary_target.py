"""Ternary training towards a wanted fraction of zeros: the threshold follows the spreading
latents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tersify.checks import check_range
from tersify.methods.base import Bound, Method, Site, Step, Transform
from tersify.methods.flat_weights import FlatWeights, Prepared
from tersify.methods.layer_spreads import layer_spreads
from tersify.methods.registry import register
from tersify.methods.ternary_bound import TernaryBound
from tersify.methods.threshold import (
    TernaryTransform,
    check_latent_settings,
    is_measured_at,
    magnitude_quantile,
)
from tersify.schedules import Progress, cubic_ramp

# An optimizer moves a latent by about its rate in a step, wherever the others are.
# Levels do not depend on the latents' size, since the threshold is a fraction of them, so
# a shorter run gets a smaller size. Smaller than the least, the first steps alone would
# reorder the weights of a trained network: at 0.08, five steps at a rate of 5e-3 cross
# the threshold of 90 % zeros, at 0.24 fifteen.
STEPS_OF_FULL_SPREAD = 1000
LEAST_OF_SPREAD = 0.24
# fewer zeros at once would leave too many for the steps that follow
LEAST_START_OF_SHORT_RUNS = 0.6


@register("ternary-target")
@dataclass(frozen=True, kw_only=True)
class TernaryTarget(Method):
    """−1/0/+1 like 'ternary', with Δ such that a fraction of all these weights is zero.

    The fraction rises from `start`, or less where less is wanted, to `sparsity` by a cubic
    between the fractions `begin` and `end` of training. One Δ serves all weights of the
    rule, so each layer finds its own fraction. Latents are not clipped: many would meet at
    the border, where no threshold can part them. `spread` and `scale` are those of
    'ternary'. With `spread`, a run of fewer than 1,000 steps is helped along: latents
    are brought closer together, so that they can change places before it ends; those of
    small layers less, so that these keep more of their weights; scales grow as zeros
    come, since there is no time to learn them; and the fraction begins at 0.6 at least.
    """

    sparsity: float = 0.9
    start: float = 0.4
    begin: float = 0.0
    end: float = 0.6
    spread: float | None = None
    scale: str = "none"

    def __post_init__(self) -> None:
        for name in ("sparsity", "start"):
            check_range(
                name,
                getattr(self, name),
                low=0.0,
                high=1.0,
                low_open=True,
                high_open=True,
            )
        check_range("begin", self.begin, low=0.0, high=1.0)
        check_range("end", self.end, low=0.0, high=1.0)
        if self.end <= self.begin:
            raise ValueError(
                f"end must lie behind begin ({self.begin}), got {self.end}"
            )
        check_latent_settings(self.spread, self.scale)

    def transform(self, site: Site) -> Transform:
        return TernaryTransform(
            site.latent,
            threshold=0.1,
            clip=False,
            saturate=False,
            spread=self.spread,
            scale=self.scale,
        )

    def bind(self, sites: Sequence[Site]) -> TernaryBound:
        return TernaryBound(sites, list(map(self.transform, sites)))

    def project_(self, bound: Bound) -> None:
        """Nothing: the threshold follows the latents wherever they go."""

    def update(self, bound: Bound, step: Step) -> None:
        assert isinstance(bound, TernaryBound)
        if not is_measured_at(step.progress):
            return
        # Without training there are no steps in which closer latents could change
        # places.
        is_short = (
            step.progress.steps < STEPS_OF_FULL_SPREAD and not step.without_training
        )
        if self.spread is not None and is_short:
            self._move_on_quickly(bound, step.progress)
        else:
            bound.set_thresholds_(
                magnitude_quantile(
                    bound.entering(), self._fraction(self.start, step.progress)
                )
            )

    def _fraction(self, start: float, progress: Progress) -> float:
        return cubic_ramp(
            min(start, self.sparsity), self.sparsity, self.begin, self.end
        )(progress)

    def _move_on_quickly(self, bound: TernaryBound, progress: Progress) -> None:
        # Before latents and thresholds move, for `keep_sizes_` below.
        densities = bound.densities()
        if progress.step == 0:
            # A step of the optimizer has a size of its own, so a short run can cross
            # only small distances: the latents' spread shrinks with the number of
            # steps.
            near = max(progress.steps / STEPS_OF_FULL_SPREAD, LEAST_OF_SPREAD)
            spreads = layer_spreads(
                [site.latent.shape for site in bound.sites], self.sparsity
            )
            for site, spread in zip(bound.sites, spreads, strict=True):
                site.latent.mul_(near * spread)
        fraction = self._fraction(max(self.start, LEAST_START_OF_SHORT_RUNS), progress)
        bound.set_thresholds_(magnitude_quantile(bound.entering(), fraction))
        bound.keep_sizes_(densities)

    def prepare(
        self, bound: Bound, weights: FlatWeights
    ) -> Tensor | tuple[Tensor, Tensor] | Prepared | None:
        assert isinstance(bound, TernaryBound)
        return bound.ternarized(weights)

    def status(self, bound: Bound) -> dict[str, float]:
        assert isinstance(bound, TernaryBound)
        return {"Δ": bound.largest_threshold()}
