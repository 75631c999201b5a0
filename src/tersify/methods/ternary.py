"""Sparse ternary training with a growing threshold (paper 1, eq. 2 and 5–7)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tersify.methods.base import (
    Bound,
    Method,
    Site,
    Step,
    Transform,
    check_choice,
    check_range,
    dense,
    register,
    straight_through,
    ternary_tensor,
)
from tersify.methods.relative import RelativeLevels
from tersify.schedules import REGIMES, Schedule, growth
from tersify.tensor import CompressedTensor
from tersify.userfile import load_function, names_function


@register("ternary")
@dataclass(frozen=True, kw_only=True)
class Ternary(Method):
    """−1/0/+1 by a threshold Δ = min(Δ0 + Δ0·M·f(epoch), Δf).

    `regime` is f: fixed, linear, square, exp, log, log10, or a function of the epoch. `over` is the number
    of epochs the regime was chosen for; a run of another length stretches it. `spread` rescales
    the latents to that standard deviation at attach (Δ0 = 0.1 wants about 0.2), for networks whose own
    initialisation is smaller. `scale` gives each tensor or output channel a learned factor, which
    a network needs where no BatchNorm absorbs it.
    """

    regime: str | Callable[[float], float] = "fixed"
    delta0: float = 0.1
    speed: float = 1.9
    cap: float = 0.9
    over: int | None = None
    clip: bool = True
    spread: float | None = None
    scale: str = "none"

    def __post_init__(self) -> None:
        if isinstance(self.regime, str) and not names_function(self.regime):
            check_choice("regime", self.regime, [*REGIMES, "file.py:function"])
        check_range("delta0 (Δ0)", self.delta0, low=0.0, high=1.0, low_open=True)
        check_range("speed (M)", self.speed, low=0.0, high=float("inf"))
        check_range("cap (Δf)", self.cap, low=0.0, high=1.0, low_open=True)
        if self.cap < self.delta0:
            raise ValueError(f"cap (Δf) must be at least delta0 (Δ0 = {self.delta0}), got {self.cap}")
        if self.over is not None and self.over < 1:
            raise ValueError(f"over must be a number of epochs from 1 on, got {self.over}")
        if self.spread is not None:
            check_range("spread", self.spread, low=0.0, high=1.0, low_open=True)
        check_choice("scale", self.scale, ["none", "tensor", "channel"])

    def schedule(self, epochs: float) -> Schedule:
        """Δ as a function of progress in a run of `epochs` epochs."""
        f = _regime(self.regime)
        stretch = 1.0 if self.over is None else (self.over - 1) / max(epochs - 1, 1)
        return growth(self.delta0, self.speed, lambda epoch: f(1 + (epoch - 1) * stretch), self.cap)

    def transform(self, site: Site) -> Transform:
        return TernaryTransform(self, site.latent)

    def update(self, bound: Bound, step: Step) -> None:
        threshold = self.schedule(step.progress.epochs)(step.progress)
        for transform in bound.each(TernaryTransform):
            transform.threshold.fill_(threshold)

    def status(self, bound: Bound) -> dict[str, float]:
        return {"Δ": float(bound.each(TernaryTransform)[0].threshold)}


@functools.cache
def _regime(regime: str | Callable[[float], float]) -> Callable[[float], float]:
    if callable(regime):
        return regime
    return REGIMES[regime] if regime in REGIMES else load_function(regime)


class TernaryTransform(Transform):
    threshold: Tensor

    def __init__(self, method: Ternary, latent: Tensor) -> None:
        super().__init__()
        self.clip = method.clip
        self.register_buffer("threshold", torch.tensor(method.delta0, dtype=latent.dtype, device=latent.device))
        with torch.no_grad():
            size = latent.std(correction=0)
            if method.spread is not None and size > 0:
                latent.mul_(method.spread / size)
            self.factor = None
            if method.scale != "none":
                # The quantized weight starts with the root mean square of the one it replaces.
                density = (latent.abs() > self.threshold).to(latent.dtype).mean().clamp(min=0.01)
                start = size / density.sqrt()
                per_channel = (latent.shape[0], *[1] * (latent.ndim - 1))
                self.factor = RelativeLevels(
                    start.expand(per_channel if method.scale == "channel" else ()), members=latent.numel()
                )

    def pattern(self, latent: Tensor) -> Tensor:  # eq. 5
        return torch.where(latent.abs() > self.threshold, latent.sign(), 0.0)

    def forward(self, latent: Tensor) -> Tensor:
        # The clamp is eq. 2: outside [-1, 1] no gradient passes. On the border it does, since a clipped
        # latent could otherwise never come back.
        value = straight_through(self.pattern(latent.detach()), latent.clamp(-1.0, 1.0))
        return value if self.factor is None else value * self.factor()

    def project_(self, latent: Tensor) -> None:
        if self.clip:
            latent.clamp_(-1.0, 1.0)

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        pattern = self.pattern(dense(upstream))
        return ternary_tensor(pattern, scale=None if self.factor is None else self.factor())
