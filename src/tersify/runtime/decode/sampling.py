"""Which token comes next."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tersify.checks import check_range, check_whole

FIRST = 256  # tokens that are sorted at first
COLDEST = 1e-30  # a temperature that float32 can divide by


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The likeliest token, or with `do_sample` a random one of those that temperature,
    top_k and top_p leave.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0

    def __post_init__(self) -> None:
        check_range("temperature", self.temperature, low=0, high=100, low_open=True)
        check_range("top_p", self.top_p, low=0, high=1, low_open=True)
        check_whole("top_k", self.top_k, low=0)

    def choose(self, logits: Tensor, generator: torch.Generator | None = None) -> int:
        """From the logits of one token, [vocabulary]."""
        if not self.do_sample:
            return int(logits.argmax())
        scores, numbers = logits, None
        if self.top_k and self.top_k < scores.numel():
            scores, numbers = scores.topk(self.top_k)
        # The largest becomes 0, so that no temperature makes it infinite.
        scores = (scores - scores.max()) / max(self.temperature, COLDEST)
        shares = scores.softmax(-1)
        if self.top_p < 1:
            shares, order = _likeliest(shares, self.top_p)
            numbers = order if numbers is None else numbers[order]
        drawn = _drawn(shares, generator)
        return drawn if numbers is None else int(numbers[drawn])


def _likeliest(shares: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The fewest shares, the largest first, that add up to top_p, and where they are.

    Nearly always a few hundred of many thousand tokens are enough, and sorting all
    would take longer than a small model's own step.
    """
    count = min(FIRST, shares.numel())
    while True:
        found, order = shares.topk(count)
        # The sum of all larger ones: a token stays while that is below top_p.
        before = found.cumsum(-1, dtype=torch.float64).roll(1)
        before[0] = 0
        kept = int((before < top_p).sum())
        if kept < count or count == shares.numel():
            return found[:kept], order[:kept]
        count = min(16 * count, shares.numel())


def _drawn(shares: Tensor, generator: torch.Generator | None) -> int:
    """A place, each as often as its share says: one number is drawn, and not one for
    each place.
    """
    ends = shares.cumsum(-1, dtype=torch.float64)
    if not ends[-1] > 0:
        raise ValueError("the model's logits are no numbers; no token can be drawn")
    number = torch.rand((), dtype=torch.float64, generator=generator) * ends[-1]
    place = int(torch.searchsorted(ends, number, right=True))
    # Rounded up, the number may be the end of all.
    return place if place < shares.numel() else int(shares.argmax())
