"""Pure functions of training progress: how a threshold, a density or a temperature
moves with time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Where training stands. `epoch` counts from 1 and is fractional inside an epoch."""

    step: int
    steps: int
    epoch: float
    epochs: int = 1

    @property
    def fraction(self) -> float:
        """The fraction of training that is done, 0 … 1."""
        return self.step / self.steps if self.steps else 1.0


Schedule = Callable[[Progress], float]

REGIMES: dict[str, Callable[[float], float]] = {
    "fixed": lambda epoch: 0.0,
    "linear": lambda epoch: epoch,
    "square": lambda epoch: epoch * epoch,
    # exp overflows a double beyond 709; the cap ends the growth long before.
    "exp": lambda epoch: math.exp(min(epoch, 700.0)),
    "log": math.log,
    "log10": math.log10,
}


def growth(
    start: float, speed: float, regime: Callable[[float], float], cap: float
) -> Schedule:
    """min(Δ0 + Δ0·M·f(epoch), Δf): the growing threshold of paper 1, eq. 7."""
    return lambda progress: min(start + start * speed * regime(progress.epoch), cap)


def cubic_ramp(start: float, final: float, begin: float, end: float) -> Schedule:
    """From `start` to `final` between the fractions `begin` and `end` of training (Zhu and
    Gupta's AGP).
    """

    def value(progress: Progress) -> float:
        # Zhu and Gupta 2017, eq. 1.
        done = (progress.fraction - begin) / (end - begin)
        left = 1.0 - min(max(done, 0.0), 1.0)
        return final + (start - final) * left**3

    return value
