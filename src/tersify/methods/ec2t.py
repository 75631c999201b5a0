"""Entropy-constrained trained ternarization: codes chosen by distance and by cost in
bits (Marban et al. 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tersify.checks import check_range
from tersify.methods.base import Bound, Method, Site, Step, Transform
from tersify.methods.flat_weights import FlatWeights, Prepared
from tersify.methods.registry import register
from tersify.methods.relative_levels import (
    AllLevels,
    RelativeLevels,
    keep_positive_,
    levels_now,
    levels_of,
)
from tersify.methods.threshold import is_measured_at
from tersify.methods.ttq import (
    all_signed_levels,
    side_means,
    signed_codebook,
    signed_levels,
)
from tersify.methods.weight_math import dense, ternary_tensor
from tersify.tensor import CompressedTensor

# in P: a bit between zero and the levels, so that λ always pulls towards zero
LEAST_FRACTION_OF_ZERO = 0.5
LEAST_PART = 0.1  # of λ, for a layer of few weights
# λ moves by the fraction of zeros that is missing. That fraction answers to λ with a slope of
# 0.2 to 0.3, so each measurement closes about a quarter of the gap, without swinging.
LAMBDA_PER_MISSING_FRACTION = 1.0
MOVES_WITHOUT_TRAINING = 100
MOVES_UNTIL = 0.75  # of training
DEFAULT_LAMBDA = 0.1


@register("ec2t")
@dataclass(frozen=True, kw_only=True)
class EntropyConstrainedTernary(Method):
    """argmin over −Wn/0/+Wp of (w − level)² / mean level² − λ·log2 P(level) (paper 1,
    eq. 4).

    P counts the nearest levels, without λ: shares that λ itself has moved would move it
    on until a level is empty. The distance is taken relative to the layer's squared
    levels, so one λ fits every layer, and a small layer, whose zeros save little, has a
    smaller fraction of it. `warmup` is the fraction of training over which λ rises linearly
    from 0. `sparsity` replaces λ: it is led, over the same time, to where that fraction of
    these weights is zero. In the last quarter of training P and λ stand: codes that
    flip with them would find no time to be learned around. With `plain` the cost is eq.
    4 as printed: squared distances as they are, one λ for all, and P counts the codes.
    """

    lam: float = DEFAULT_LAMBDA
    warmup: float = 0.2
    sparsity: float | None = None
    plain: bool = False

    def __post_init__(self) -> None:
        check_range("lam (λ)", self.lam, low=0.0, high=100.0)
        check_range(
            "warmup (λ stands from there on)", self.warmup, low=0.0, high=MOVES_UNTIL
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
            if self.lam != DEFAULT_LAMBDA:
                raise ValueError(
                    f"lam (λ = {self.lam}) and sparsity both set the number of zeros; give one of them"
                )

    def transform(self, site: Site) -> Transform:
        return Ec2tTransform(site.entering(), plain=self.plain)

    def bind(self, sites: Sequence[Site]) -> Bound:
        bound = super().bind(sites)
        if self.plain:
            return bound
        # λ of a layer grows with its size, from about LEAST_PART of λ for a tiny layer
        # to all of it for the largest.
        largest = max(site.latent.numel() for site in sites)
        for site, transform in zip(sites, bound.each(Ec2tTransform), strict=True):
            transform.part.fill_(
                (site.latent.numel() / largest + LEAST_PART) / (1 + LEAST_PART)
            )
        return bound

    def update(self, bound: Bound, step: Step) -> None:
        standing = step.progress.fraction > MOVES_UNTIL and not step.without_training
        if standing or not is_measured_at(step.progress):
            return
        transforms, latents = bound.each(Ec2tTransform), bound.entering()
        # P is measured even in warm-up, so that λ meets the right priors when it rises.
        nearest = count_levels_(transforms, latents, plain=self.plain)
        # λ rises linearly from 0 to its full value over the fraction `warmup` of training.
        rise = min(step.progress.fraction / self.warmup, 1.0) if self.warmup else 1.0
        if self.sparsity is None:
            set_lambda_(transforms, self.lam * rise)
            return
        set_more_bits_(transforms)
        weights = sum(latent.numel() for latent in latents)
        # Begins at the fraction of zeros that λ = 0 gives, so that the first steps move
        # nothing.
        wanted = nearest / weights + (self.sparsity - nearest / weights) * rise
        # A proportional controller: λ grows by what is missing of the wanted fraction. In
        # training one move a measurement suffices; without it all moves happen now.
        for _ in range(MOVES_WITHOUT_TRAINING if step.without_training else 1):
            zeros = torch.stack(
                [
                    (t.pattern(x) == 0).sum()
                    for t, x in zip(transforms, latents, strict=True)
                ]
            ).sum()
            missing = wanted - zeros / weights
            set_lambda_(
                transforms,
                (transforms[0].lam + LAMBDA_PER_MISSING_FRACTION * missing).clamp(
                    min=0.0
                ),
            )

    def project_(self, bound: Bound) -> None:
        keep_positive_(levels_of(bound, "levels"))

    @torch.no_grad()
    def prepare(self, bound: Bound, weights: FlatWeights) -> Prepared:
        levels = AllLevels(levels_of(bound, "levels"), weights)
        # One row of three numbers for each tensor; see `more_bits_than_others`.
        own = bound.buffers("more_bits")
        # They change only where λ and P are measured, and not at all in the last
        # quarter of training.
        more_bits = weights.remembered("more bits", own, lambda: torch.stack(own))
        of_tensors = levels.values.view(-1, 2)
        low, high = edges_between(of_tensors, more_bits, plain=self.plain)
        # (4, tensors), spread to the weights by one call instead of four.
        each = torch.stack([low, high, *of_tensors.unbind(1)])
        low, high, plus, minus = each.index_select(1, weights.owners()).unbind()
        up = (weights.values > high).to(plus.dtype)
        down = (weights.values < low).to(plus.dtype).neg_()
        return all_signed_levels(up, down, plus, minus, levels, weights)

    def status(self, bound: Bound) -> dict[str, float]:
        return {"λ": float(bound.each(Ec2tTransform)[0].lam)}


@torch.no_grad()
def count_levels_(
    transforms: Sequence[Ec2tTransform], latents: Sequence[Tensor], *, plain: bool
) -> Tensor:
    """Measure P of every layer from the level nearest to each weight, zero as at least
    half of it; the number of weights nearest to zero.
    """
    # Every layer by itself only where its weights are looked at: the rest is a few
    # numbers a layer, and one call serves all of them.
    halves = levels_now([t.levels for t in transforms]) / 2
    counts = torch.stack(
        [
            torch.stack([(latent > plus).sum(), (latent < -minus).sum()])
            for latent, (plus, minus) in zip(latents, halves.unbind(), strict=True)
        ]
    )
    sizes = counts.new_tensor([[latent.numel()] for latent in latents])
    if plain:
        patterns = [t.pattern(x) for t, x in zip(transforms, latents, strict=True)]
        of_codes = [torch.stack([(p > 0).sum(), (p < 0).sum()]) for p in patterns]
        fractions = torch.stack(of_codes) / sizes
    else:
        fractions = counts / sizes
        signed = fractions.sum(1, keepdim=True).clamp(min=1e-6)
        # The two signed levels together have at most 1 − LEAST_SHARE_OF_ZERO: a layer
        # without zeros would give zero a prior of 0, and it could never get any.
        fractions *= ((1 - LEAST_FRACTION_OF_ZERO) / signed).clamp(max=1.0)
    priors = torch.cat([1 - fractions.sum(1, keepdim=True), fractions], 1)
    torch._foreach_copy_([t.prior for t in transforms], list(priors.unbind()))
    return sizes.sum() - counts.sum()


def set_lambda_(transforms: Sequence[Ec2tTransform], lam: Tensor | float) -> None:
    for transform in transforms:
        transform.lam.fill_(lam)
    set_more_bits_(transforms)


def set_more_bits_(transforms: Sequence[Ec2tTransform]) -> None:
    """Let λ and P, of which one has changed, count from here on."""
    more_bits = more_bits_than_others(
        torch.stack([t.prior for t in transforms]),
        torch.stack([t.lam * t.part for t in transforms])[:, None],
    )
    torch._foreach_copy_([t.more_bits for t in transforms], list(more_bits.unbind()))


def more_bits_than_others(prior: Tensor, lam: Tensor) -> Tensor:
    """λ times the bits that +Wp needs more than zero, −Wn more than zero, and +Wp more
    than −Wn, for P of (zero, plus, minus) in the last dimension.
    """
    # At most 20 bits: the logarithm of an empty level would be infinite.
    bits = -prior.clamp(min=1e-6).log2() * lam
    zero, plus, minus = bits.unbind(-1)
    return torch.stack([plus - zero, minus - zero, plus - minus], -1)


def edges_between(
    levels: Tensor, more_bits: Tensor, *, plain: bool
) -> tuple[Tensor, Tensor]:
    """Below the first weights cost least at −Wn, above the second at +Wp (eq. 4).

    `levels` are (Wp, Wn) in the last dimension. The cost of a level is a parabola of
    the weight, of the same width for all three, so each two of them meet in one point:
    half way, moved by what one needs more bits than the other. That of −Wn and +Wp
    counts where zero is never cheapest.
    """
    plus, minus = levels.unbind(-1)
    distances = torch.stack([plus, minus, plus + minus], -1)
    middles = torch.stack([plus, minus, plus - minus], -1) / 2
    # (w − a)² + bits_a = (w − b)² + bits_b gives w = (a + b)/2 + (bits_a − bits_b) /
    # 2(a − b).
    moved = more_bits / distances / 2
    if not plain:
        # Distances are measured in the mean squared level.
        moved *= (levels.square().sum(-1, keepdim=True) / 2).clamp(min=1e-12)
    zero_plus, zero_minus, minus_plus = (middles + moved).unbind(-1)
    # Where zero is cheapest somewhere, −zero_minus < minus_plus < zero_plus, and the
    # outer two decide.
    return torch.minimum(-zero_minus, minus_plus), torch.maximum(zero_plus, minus_plus)


class Ec2tTransform(Transform):
    """`prior`, `lam` and `part`, this layer's fraction of λ, count by `more_bits` alone."""

    beside_the_weight = frozenset({"lam", "part", "prior"})

    lam: Tensor
    part: Tensor
    prior: Tensor
    more_bits: Tensor

    def __init__(self, latent: Tensor, *, plain: bool = False) -> None:
        super().__init__()
        self.plain = plain
        # TWN's threshold of 0.7 mean magnitudes (eq. 6 there) only serves to find first
        # levels.
        start = torch.where(
            latent.abs() > 0.7 * latent.abs().mean(), latent.sign(), 0.0
        )
        self.levels = RelativeLevels(side_means(latent, start), members=latent.numel())
        self.register_buffer(
            "lam", torch.zeros((), dtype=latent.dtype, device=latent.device)
        )
        self.register_buffer(
            "part", torch.ones((), dtype=latent.dtype, device=latent.device)
        )
        self.register_buffer(
            "prior", torch.full((3,), 1 / 3, dtype=latent.dtype, device=latent.device)
        )
        self.register_buffer(
            "more_bits", torch.zeros(3, dtype=latent.dtype, device=latent.device)
        )

    def pattern(self, latent: Tensor) -> Tensor:
        levels = self.levels().detach()
        low, high = edges_between(levels, self.more_bits, plain=self.plain)
        return (latent > high).to(latent.dtype) - (latent < low).to(latent.dtype)

    def forward(self, latent: Tensor) -> Tensor:
        plus, minus = self.levels().unbind()
        return signed_levels(self.pattern(latent.detach()), (plus, minus), latent)

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        return ternary_tensor(
            self.pattern(dense(upstream)), levels=signed_codebook(self.levels())
        )
