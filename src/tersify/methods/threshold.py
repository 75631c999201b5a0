"""The transform behind every unscaled or scaled ternary method with an explicit
threshold.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tersify import ranks
from tersify.checks import check_choice, check_given, check_range
from tersify.methods.base import Transform
from tersify.methods.relative_levels import RelativeLevels
from tersify.methods.weight_math import dense, straight_through, ternary_tensor
from tersify.schedules import Progress
from tersify.tensor import CompressedTensor

SCALES = ("none", "tensor", "channel")
# A threshold for a fraction of zeros is found from at most this many latents, every 16
# steps (oftener in a short run): the cost stays the same for a network of any size, and
# the fraction is met within about 0.1 points.
SAMPLED_LATENTS = 1 << 20
MOST_STEPS_BETWEEN = 16
SAMPLED_OF_A_WEIGHT = 1 << 16


def check_latent_settings(spread: float | None, scale: str) -> None:
    check_given(check_range, "spread", spread, low=0.0, high=1.0, low_open=True)
    check_choice("scale", scale, SCALES)


def is_measured_at(progress: Progress) -> bool:
    """Whether a fraction of zeros is measured before this step: now and then, and before
    the last one.
    """
    # About fifty measurements in a short run: a quantile over all latents costs as much
    # as several layers. A run of unknown length counts as long as it is by now.
    length = max(progress.steps, progress.step)
    between = max(1, min(MOST_STEPS_BETWEEN, length // 50))
    last = progress.step in (progress.steps - 1, progress.steps)
    return last or progress.step % between == 0


def magnitude_quantile(latents: Sequence[Tensor], fraction: float) -> Tensor:
    """The magnitude below which `fraction` of the latents lie, from an even sample of
    them.
    """
    # Rounded up, and at least 1: the sample has at most about SAMPLED_LATENTS numbers.
    stride = -(-sum(t.numel() for t in latents) // SAMPLED_LATENTS)
    sample = torch.cat([t.reshape(-1)[::stride] for t in latents]).abs_()
    place = max(1, round(fraction * sample.numel()))
    if sample.is_cuda:
        # There torch searches a vector with one block of threads, and sorts with all.
        return sample.sort().values[place - 1]
    return sample.kthvalue(place).values


def leaving(entering: Tensor, fraction: float) -> Tensor:
    """The largest threshold beyond which this fraction of a weight lies, of an even
    sample of it; zeros that come in are not counted.
    """
    flat = ranks.whole(entering).reshape(-1)
    # An odd stride does not fall in step with a pattern such as 2:4.
    stride = -(-flat.numel() // SAMPLED_OF_A_WEIGHT) | 1
    largest_first = flat[::stride].abs().sort(descending=True).values
    stay = ((largest_first > 0).sum() * fraction).ceil().clamp(min=1)
    # Gathered and not indexed, which would wait for a GPU.
    last = largest_first.gather(0, stay.long()[None] - 1)[0]
    # just below the last one that stays, and those of its size
    return last * (1 - torch.finfo(last.dtype).eps)


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
        floor: float = 0.0,
    ) -> None:
        super().__init__()
        self.clip, self.saturate = clip, saturate
        self.register_buffer(
            "threshold",
            torch.tensor(threshold, dtype=latent.dtype, device=latent.device),
        )
        with torch.no_grad():
            # correction=0, since a weight of one number has no unbiased deviation.
            size = latent.std(correction=0)
            self._stretch = spread / size if spread is not None and size > 0 else None
            stretched = latent if self._stretch is None else latent * self._stretch
            if floor and latent.numel():
                self.threshold.clamp_(max=leaving(stretched, floor))
            self.factor = None
            if scale != "none":
                # The quantized weight starts with the root mean square of the one it
                # replaces. A weight of zeros must be able to learn, too.
                start = (size / self.density(stretched).sqrt()).clamp(min=1e-3)
                per_channel = (latent.shape[0], *[1] * (latent.ndim - 1))
                self.factor = RelativeLevels(
                    start.expand(per_channel if scale == "channel" else ()),
                    members=latent.numel(),
                )

    @torch.no_grad()
    def start_(self, latent: Tensor) -> None:
        if self._stretch is not None:
            latent.mul_(self._stretch)

    def density(self, latent: Tensor) -> Tensor:
        """The fraction of weights that are not zero, or a hundredth: a scale must not
        follow it to none at all.
        """
        return (latent.abs() > self.threshold).to(latent.dtype).mean().clamp(min=0.01)

    def pattern(self, latent: Tensor) -> Tensor:  # eq. 5
        return torch.where(latent.abs() > self.threshold, latent.sign(), 0.0)

    def forward(self, latent: Tensor) -> Tensor:
        # The clamp is eq. 2: outside [-1, 1] no gradient passes. On the border it does,
        # since a clipped latent could otherwise never come back.
        passed = latent.clamp(-1.0, 1.0) if self.saturate else latent
        value = straight_through(self.pattern(latent.detach()), passed)
        return value if self.factor is None else value * self.factor()

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        pattern = self.pattern(dense(upstream))
        return ternary_tensor(
            pattern, scale=None if self.factor is None else self.factor()
        )
