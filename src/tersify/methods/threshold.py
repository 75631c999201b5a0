"""The transform behind every unscaled or scaled ternary method with an explicit threshold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from tersify.methods.ahead import Ahead, may_make_ahead, signs_together, standing_for
from tersify.methods.base import (
    Bound,
    Site,
    Transform,
    check_choice,
    check_range,
    dense,
    straight_through,
    ternary_tensor,
)
from tersify.methods.relative import RelativeLevels
from tersify.ranks import own_part
from tersify.schedules import Progress
from tersify.tensor import CompressedTensor

SCALES = ("none", "tensor", "channel")
# A threshold for a share of zeros is found from at most this many latents, every 16 steps (oftener in a short
# run): the cost stays the same for a network of any size, and the share is met within about 0.1 points.
SAMPLED_LATENTS = 1 << 20
MOST_STEPS_BETWEEN = 16
CAST_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


def check_latent_settings(spread: float | None, scale: str) -> None:
    if spread is not None:
        check_range("spread", spread, low=0.0, high=1.0, low_open=True)
    check_choice("scale", scale, SCALES)


# All sites at once: an eager GPU step is bound by launches, not by arithmetic, so what would be a few kernels for
# each site is a few for all of them.


def clip_latents(bound: Bound) -> None:
    latents = [own_part(site.latent) for site in bound.sites]
    if latents[0].is_cpu:  # where launches cost nothing, and a second pass through memory does
        for latent in latents:
            latent.clamp_(-1.0, 1.0)
        return
    torch._foreach_clamp_min_(latents, -1.0)
    torch._foreach_clamp_max_(latents, 1.0)


def set_thresholds(bound: Bound, threshold: float) -> None:
    first, *others = [transform.threshold for transform in bound.each(TernaryTransform)]
    first.fill_(threshold)
    if others:
        torch._foreach_copy_(others, [first] * len(others))


def is_measured_at(progress: Progress) -> bool:
    """Whether a share of zeros is measured before this step: now and then, and before the last one."""
    between = max(1, min(MOST_STEPS_BETWEEN, progress.steps // 50))
    return progress.step % between == 0 or progress.step + 1 >= progress.steps


def magnitude_quantile(latents: Sequence[Tensor], share: float) -> Tensor:
    """The magnitude below which `share` of the latents lie, from an even sample of them."""
    stride = -(-sum(t.numel() for t in latents) // SAMPLED_LATENTS)
    sample = torch.cat([t.reshape(-1)[::stride].abs() for t in latents])
    return sample.kthvalue(max(1, round(share * sample.numel()))).values


def ternarize_ahead(sites: Sequence[Site], threshold: float) -> None:
    """The weights the coming forward pass will ask for.

    Latents are inside [-1, 1] after the step's projection, so the gradient passes everywhere (eq. 2): no mask.
    """
    ready = [site for site in sites if _may_go_ahead(site.chain)]
    latents: list[Tensor] = [site.latent for site in ready]
    if not may_make_ahead(latents):
        return
    keepers = [cast(TernaryTransform, site.chain[0]).ahead for site in ready]
    edge = float(torch.tensor(threshold, dtype=latents[0].dtype))
    patterns = torch._foreach_div(latents, 2.0 * edge)
    torch._foreach_round_(patterns)  # a half goes to the even zero, and with it the threshold itself
    weights = standing_for(latents, signs_together(patterns, keepers), keepers)
    for weight, latent, keeper in zip(weights, latents, keepers, strict=True):
        keeper.set(weight, latent)


def read_by_cast_layers(site: Site) -> bool:
    """Whether autocast casts the weight wherever it is read."""
    return len(site.owners) == 1 and type(site.owners[0][0]) in CAST_LAYERS


def _may_go_ahead(chain: list[Transform]) -> bool:
    """The transform is alone on its clipped latent, and its last weight was asked for."""
    first = chain[0]
    return len(chain) == 1 and isinstance(first, TernaryTransform) and first.clip and first.ahead.wanted


class TernaryTransform(Transform):
    threshold: Tensor

    def __init__(
        self,
        latent: Tensor,
        *,
        threshold: float,
        clip: bool = True,
        saturate: bool = True,
        spread: float | None = None,
        scale: str = "none",
        only_cast: bool = False,
    ) -> None:
        super().__init__()
        self.clip, self.saturate = clip, saturate
        self.ahead = Ahead(castable=only_cast and scale == "none")
        self.register_buffer("threshold", torch.tensor(threshold, dtype=latent.dtype, device=latent.device))
        with torch.no_grad():
            size = latent.std(correction=0)
            self._stretch = spread / size if spread is not None and size > 0 else None
            self.factor = None
            if scale != "none":
                stretched = latent if self._stretch is None else latent * self._stretch
                # The quantized weight starts with the root mean square of the one it replaces.
                density = (stretched.abs() > self.threshold).to(latent.dtype).mean().clamp(min=0.01)
                # A weight of zeros must be able to learn, too.
                start = (size / density.sqrt()).clamp(min=1e-3)
                per_channel = (latent.shape[0], *[1] * (latent.ndim - 1))
                self.factor = RelativeLevels(
                    start.expand(per_channel if scale == "channel" else ()), members=latent.numel()
                )

    @torch.no_grad()
    def start_(self, latent: Tensor) -> None:
        if self._stretch is not None:
            latent.mul_(self._stretch)

    def pattern(self, latent: Tensor) -> Tensor:  # eq. 5
        return torch.where(latent.abs() > self.threshold, latent.sign(), 0.0)

    def ready(self, latent: Tensor) -> Tensor | None:
        return self.ahead.get(latent) if self.factor is None else None

    def forward(self, latent: Tensor) -> Tensor:
        value = None
        if self.training and not torch.compiler.is_compiling():
            value = self.ahead.get(latent)
        if value is None:
            # The clamp is eq. 2: outside [-1, 1] no gradient passes. On the border it does, since a clipped
            # latent could otherwise never come back. A weight made ahead belongs to a latent inside.
            passed = latent.clamp(-1.0, 1.0) if self.saturate else latent
            value = straight_through(self.pattern(latent.detach()), passed)
        return value if self.factor is None else value * self.factor()

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        pattern = self.pattern(dense(upstream))
        return ternary_tensor(pattern, scale=None if self.factor is None else self.factor())
