"""When a pruner chooses its mask, and how much of its final amount is pruned by then."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tersify.checks import check_choice, check_range, check_whole
from tersify.methods.base import Step
from tersify.schedules import Progress

SCHEDULES = ("agp", "linear", "cyclic", "one-shot", "frozen")


@dataclass(frozen=True, kw_only=True)
class Pace:
    """agp, linear: once up the ramp from `begin` to `end`. cyclic: up several ramps,
    the zeros returning between.

    one-shot: all at `begin`. frozen: never; the zeros a weight has when training starts
    are its mask. `begin` and `end` are fractions of training; on a ramp a mask is chosen
    `every` so many steps, and for the last time at `end`.
    """

    schedule: str
    begin: float
    end: float
    every: int
    cycles: int
    regrow: float

    def __post_init__(self) -> None:
        check_choice("schedule", self.schedule, SCHEDULES)
        check_range("begin", self.begin, low=0.0, high=1.0)
        check_range("end", self.end, low=0.0, high=1.0)
        if self.schedule not in ("one-shot", "frozen") and self.end <= self.begin:
            raise ValueError(
                f"end must lie behind begin ({self.begin}), got {self.end}"
            )
        for name in ("every", "cycles"):
            check_whole(name, getattr(self, name), low=1)
        check_range("regrow", self.regrow, low=0.0, high=1.0)

    def is_due(self, step: Step) -> bool:
        """Whether the mask is chosen anew before this batch."""
        if self.schedule == "frozen":
            return False
        if step.without_training:
            return True
        progress = step.progress
        first = first_step(self.begin, progress)
        last = first if self.schedule == "one-shot" else first_step(self.end, progress)
        at = progress.step
        # `at == last` makes the final amount exact even where `every` does not divide
        # the ramp.
        return first <= at <= last and ((at - first) % self.every == 0 or at == last)

    def done(self, progress: Progress) -> float:
        """How far the amount has come from its start (0) to its end (1)."""
        last = first_step(
            self.begin if self.schedule == "one-shot" else self.end, progress
        )
        if progress.step >= last:
            return 1.0
        along = (progress.fraction - self.begin) / (self.end - self.begin)
        along = min(max(along, 0.0), 1.0)
        if self.schedule == "linear":
            return along
        if self.schedule == "agp":
            return 1.0 - (1.0 - along) ** 3  # Zhu and Gupta 2017, eq. 1
        # Cyclical pruning: each cycle climbs by the cubic, later ones from where the
        # regrown weights leave it.
        cycle, within = divmod(along * self.cycles, 1.0)
        # `regrow` is the fraction of the pruned weights that return between two cycles.
        low = 0.0 if cycle < 1 else 1.0 - self.regrow
        return 1.0 - (1.0 - low) * (1.0 - within) ** 3


def first_step(fraction: float, progress: Progress) -> int:
    """The first step at or behind that fraction of training, which a short run must not
    miss.
    """
    # 1e-9 takes up the rounding of the product: 0.07 · 100 gives 7.000000000000001,
    # which must be step 7.
    return min(math.ceil(fraction * progress.steps - 1e-9), progress.steps - 1)
