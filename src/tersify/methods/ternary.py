"""Sparse ternary training with a growing threshold (paper 1, eq. 2 and 5–7)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from tersify.checks import check_choice, check_given, check_range, check_whole
from tersify.methods.base import Bound, Method, Site, Step, Transform
from tersify.methods.flat_weights import FlatWeights, Prepared
from tersify.methods.registry import register
from tersify.methods.ternary_bound import TernaryBound
from tersify.methods.threshold import (
    TernaryTransform,
    check_latent_settings,
    is_measured_at,
    magnitude_quantile,
)
from tersify.schedules import REGIMES, Schedule, growth
from tersify.userfile import load_function, names_function

DEFAULT_CAP = 0.9


@register("ternary")
@dataclass(frozen=True, kw_only=True)
class Ternary(Method):
    """−1/0/+1 by a threshold Δ = min(Δ0 + Δ0·M·f(epoch), Δf).

    `regime` is f: fixed, linear, square, exp, log, log10, or a function of the epoch.
    `over` is the number of epochs the regime was chosen for; a run of another length
    stretches it. `sparsity` ends the growth in place of Δf: Δ follows the regime until
    that fraction of all these weights is zero, and then the latents, which are not
    clipped. `spread` rescales the latents to that standard deviation at attach (Δ0 =
    0.1 wants about 0.2), for networks whose own initialisation is smaller. `scale`
    gives each tensor or output channel a learned factor, which a network needs where no
    BatchNorm absorbs it. `floor` is the fraction of each weight that stays whatever Δ is
    (with `sparsity`, of what that leaves): there Δ waits for the latents, which training
    spreads. 0 is the paper's own Δ, made for latents that begin at 0.2.
    """

    regime: str | Callable[[float], float] = "fixed"
    delta0: float = 0.1
    speed: float = 1.9
    cap: float = DEFAULT_CAP
    sparsity: float | None = None
    over: int | None = None
    clip: bool = True
    spread: float | None = None
    scale: str = "none"
    floor: float = 0.1

    def __post_init__(self) -> None:
        if not callable(self.regime) and not (
            isinstance(self.regime, str) and names_function(self.regime)
        ):
            check_choice("regime", self.regime, [*REGIMES, "file.py:function"])
        check_range("delta0 (Δ0)", self.delta0, low=0.0, high=1.0, low_open=True)
        check_range("speed (M)", self.speed, low=0.0, high=1e6)
        check_range("cap (Δf)", self.cap, low=0.0, high=1.0, low_open=True)
        # Δ begins at Δ0 and never falls, so a lower cap could not hold.
        if self.cap < self.delta0:
            raise ValueError(
                f"cap (Δf) must be at least delta0 (Δ0 = {self.delta0}), got {self.cap}"
            )
        if self.sparsity is not None:
            check_range(
                "sparsity",
                self.sparsity,
                low=0.0,
                high=1.0,
                low_open=True,
                high_open=True,
            )
            if self.cap != DEFAULT_CAP:
                raise ValueError(
                    f"cap (Δf = {self.cap}) and sparsity both end the growth; give one of them"
                )
        check_given(check_whole, "over", self.over, low=1)
        check_latent_settings(self.spread, self.scale)
        check_range("floor", self.floor, low=0.0, high=1.0, high_open=True)

    def schedule(self, epochs: float) -> Schedule:
        """Δ as a function of progress in a run of `epochs` epochs."""
        f = _regime(self.regime)
        # With a wanted sparsity the quantile in `update` ends the growth.
        cap = self.cap if self.sparsity is None else math.inf
        # Epochs count from 1, so 1 maps to 1 and the last epoch of this run to `over`.
        stretch = 1.0 if self.over is None else (self.over - 1) / max(epochs - 1, 1)
        return growth(
            self.delta0, self.speed, lambda epoch: f(1 + (epoch - 1) * stretch), cap
        )

    @property
    def needs_length(self) -> bool:
        return self.regime != "fixed" or self.sparsity is not None

    @property
    def _least(self) -> float:
        """The fraction of each weight that stays."""
        return self.floor * (1.0 if self.sparsity is None else 1.0 - self.sparsity)

    @property
    def _clips(self) -> bool:
        """Clipped latents meet at the border, where no threshold can part them for a
        fraction of zeros.
        """
        return self.clip and self.sparsity is None

    def transform(self, site: Site) -> Transform:
        return TernaryTransform(
            site.latent,
            threshold=self.delta0,
            clip=self._clips,
            saturate=self.sparsity is None,
            spread=self.spread,
            scale=self.scale,
            floor=self._least,
        )

    def bind(self, sites: Sequence[Site]) -> TernaryBound:
        return TernaryBound(sites, list(map(self.transform, sites)))

    def project_(self, bound: Bound) -> None:
        assert isinstance(bound, TernaryBound)
        if self._clips:
            bound.clip_()

    def update(self, bound: Bound, step: Step) -> None:
        assert isinstance(bound, TernaryBound)
        measures = self.sparsity is not None or self.floor > 0
        if measures and not is_measured_at(step.progress):
            return
        threshold = self.schedule(step.progress.epochs)(step.progress)
        if self.sparsity is None:
            bound.set_thresholds_(threshold)
        else:
            # Δ follows the regime until it reaches the quantile, and the quantile from
            # there on: as a tensor, since a Python number would wait for a GPU.
            quantile = magnitude_quantile(bound.entering(), self.sparsity)
            bound.set_thresholds_(quantile.clamp(max=threshold))
        if self.floor > 0:
            bound.hold_back_(self._least)

    def prepare(
        self, bound: Bound, weights: FlatWeights
    ) -> Tensor | tuple[Tensor, Tensor] | Prepared | None:
        assert isinstance(bound, TernaryBound)
        return bound.ternarized(weights)

    def status(self, bound: Bound) -> dict[str, float]:
        assert isinstance(bound, TernaryBound)
        return {"Δ": bound.largest_threshold()}


@functools.cache
def _regime(regime: str | Callable[[float], float]) -> Callable[[float], float]:
    if callable(regime):
        return regime
    return REGIMES[regime] if regime in REGIMES else load_function(regime)
