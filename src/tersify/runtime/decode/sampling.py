"""Which token comes next."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tersify.checks import check_range, check_whole


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
        # `numbers` are the tokens behind the scores that are left, None for all.
        scores, numbers = (logits / self.temperature), None
        if self.top_k and self.top_k < scores.numel():
            scores, numbers = scores.topk(self.top_k)
        if self.top_p < 1:
            scores, order = scores.sort(descending=True)
            numbers = order if numbers is None else numbers[order]
            # The probability of all likelier tokens: a token stays while that is below
            # top_p.
            before = scores.softmax(-1).cumsum(-1).roll(1)
            before[0] = 0
            scores = scores[before < self.top_p]  # the likeliest is always among them
        drawn = int(torch.multinomial(scores.softmax(-1), 1, generator=generator))
        return drawn if numbers is None else int(numbers[drawn])
