"""Ternary training towards a wanted share of zeros: the threshold follows the spreading latents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tersify.checks import check_range
from tersify.methods.base import Bound, Method, Site, Step, Transform, register
from tersify.methods.flat_weights import FlatWeights
from tersify.methods.layer_spreads import layer_spreads
from tersify.methods.ternary_bound import TernaryBound
from tersify.methods.threshold import TernaryTransform, check_latent_settings, is_measured_at, magnitude_quantile
from tersify.schedules import cubic_ramp

# An optimizer moves a latent by about its rate in a step, wherever the others are. Levels do not depend on the
# latents' size, since the threshold is a share of them, so a shorter run gets a smaller size. Smaller than the least,
# the first step alone would reorder the weights of a trained network.
STEPS_OF_FULL_SPREAD = 1000
LEAST_OF_SPREAD = 0.08


@register("ternary-target")
@dataclass(frozen=True, kw_only=True)
class TernaryTarget(Method):
    """−1/0/+1 like 'ternary', with Δ such that a share of all these weights is zero.

    The share rises from `start`, or less where less is wanted, to `sparsity` by a cubic between the shares `begin` and
    `end` of training. One Δ serves all weights of the rule, so each layer finds its own share; with `spread` the
    latents of small layers spread further, so that these keep more of their weights. Latents are not clipped: many
    would meet at the border, where no threshold can part them. `spread` and `scale` are those of 'ternary', but a
    scale grows as zeros come, so that the weight keeps its root mean square, and in a run of fewer than 1,000 steps
    the latents are brought closer together, so that they can change places before it ends.
    """

    sparsity: float = 0.9
    start: float = 0.6
    begin: float = 0.0
    end: float = 0.6
    spread: float | None = None
    scale: str = "none"

    def __post_init__(self) -> None:
        for name in ("sparsity", "start"):
            check_range(name, getattr(self, name), low=0.0, high=1.0, low_open=True, high_open=True)
        check_range("begin", self.begin, low=0.0, high=1.0)
        check_range("end", self.end, low=0.0, high=1.0)
        if self.end <= self.begin:
            raise ValueError(f"end must lie behind begin ({self.begin}), got {self.end}")
        check_latent_settings(self.spread, self.scale)

    def transform(self, site: Site) -> Transform:
        return self._transform(site, 1.0)

    def bind(self, sites: Sequence[Site]) -> TernaryBound:
        spreads = layer_spreads([site.latent.shape for site in sites], self.sparsity)
        return TernaryBound(sites, [self._transform(site, times) for site, times in zip(sites, spreads, strict=True)])

    def _transform(self, site: Site, times: float) -> Transform:
        spread = None if self.spread is None else self.spread * times
        return TernaryTransform(site.latent, threshold=0.1, clip=False, saturate=False, spread=spread, scale=self.scale)

    def project_(self, bound: Bound) -> None:
        """Nothing: the threshold follows the latents wherever they go."""

    def update(self, bound: Bound, step: Step) -> None:
        assert isinstance(bound, TernaryBound)
        if not is_measured_at(step.progress):
            return
        share = cubic_ramp(min(self.start, self.sparsity), self.sparsity, self.begin, self.end)(step.progress)
        entering = bound.entering()
        bound.move_thresholds_(magnitude_quantile(entering, share), entering)
        if self.spread is not None and step.progress.step == 0 and not step.without_training:
            near = min(max(step.progress.steps / STEPS_OF_FULL_SPREAD, LEAST_OF_SPREAD), 1.0)
            if near < 1.0:
                bound.bring_closer_(near)

    def prepare(self, bound: Bound, weights: FlatWeights) -> Tensor | tuple[Tensor, Tensor] | None:
        assert isinstance(bound, TernaryBound)
        return bound.ternarized(weights)

    def status(self, bound: Bound) -> dict[str, float]:
        return {"Δ": float(bound.each(TernaryTransform)[0].threshold)}
