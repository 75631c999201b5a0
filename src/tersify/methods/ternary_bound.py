"""What a step does for ternary weights, done for all of them at once.

An eager step on a GPU is bound by its host: by calls, not by arithmetic. What would be a few kernels for each site is
a few for all of them, and what never changes is looked up once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from tersify import ranks
from tersify.methods.ahead import Ahead, affordable, hand_to_keepers
from tersify.methods.base import Bound, Site
from tersify.methods.threshold import TernaryTransform


@dataclass(frozen=True, eq=False)
class TernaryBound(Bound):
    @cached_property
    def _alone(self) -> list[tuple[Site, Ahead]]:
        """The sites with a clipped latent and one transform, and who keeps what is made ahead of them.

        Asked for when the whole recipe stands.
        """
        pairs = zip(self.sites, self.each(TernaryTransform), strict=True)
        alone = [(site, transform.ahead) for site, transform in pairs if len(site.chain) == 1 and transform.clip]
        return alone if affordable([site.latent for site, _ in alone]) else []

    def clip_(self) -> None:
        latents: list[Tensor] = [site.latent for site in self.sites]
        if ranks.together():
            latents = [ranks.own_part(latent) for latent in latents]
        if latents[0].is_cpu:  # where launches cost nothing, and a second pass through memory does
            for latent in latents:
                latent.clamp_(-1.0, 1.0)
            return
        torch._foreach_clamp_min_(latents, -1.0)
        torch._foreach_clamp_max_(latents, 1.0)

    def set_thresholds_(self, threshold: float) -> None:
        # Past the module's own look-up, which is the slower half of this.
        thresholds = [transform._buffers["threshold"] for transform in self.transforms]
        first, *others = cast("list[Tensor]", thresholds)
        first.fill_(threshold)
        if others:
            torch._foreach_copy_(others, [first] * len(others))

    def ternarize_ahead(self, threshold: float) -> None:
        """The weights the coming forward pass will ask for, of those that it asked for last time.

        Latents are inside [-1, 1] after the step's projection, so the gradient passes everywhere (eq. 2): no mask.
        Between several ranks nothing is made ahead: gradients must come one by one, to overlap with their exchange.
        """
        wanted = [pair for pair in self._alone if pair[1].wanted]
        if not wanted or ranks.together():
            return
        for dtype in {keeper.cast for _, keeper in wanted}:
            _ternarize([pair for pair in wanted if pair[1].cast is dtype], threshold, casting=dtype is not None)


def _ternarize(pairs: Sequence[tuple[Site, Ahead]], threshold: float, *, casting: bool) -> None:
    latents: list[Tensor] = [site.latent for site, _ in pairs]
    keepers = [keeper for _, keeper in pairs]
    if (own := latents[0].dtype) not in (torch.float32, torch.float64):  # which round the scalar by themselves
        threshold = float(torch.tensor(threshold, dtype=own))
    patterns = torch._foreach_div(latents, 2.0 * threshold)
    torch._foreach_round_(patterns)  # a half goes to the even zero, and with it the threshold itself
    if not casting:
        torch._foreach_sign_(patterns)
        hand_to_keepers(latents, patterns, keepers)
        return
    # One call makes the memory of all signs, where their values lie in the right type already. What these were
    # computed in serves the gradients later.
    molds = [keeper.mold(latent) for latent, keeper in zip(latents, keepers, strict=True)]
    torch._foreach_copy_(molds, patterns)
    hand_to_keepers(latents, torch._foreach_sign(molds), keepers, patterns)
