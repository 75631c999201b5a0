"""Training for bytes: every weight is priced by the coder that will write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tersify.checks import check_range, check_whole
from tersify.codec.costs import priced
from tersify.methods.base import Bound, Method, Site, Step, Transform
from tersify.methods.flat_weights import FlatWeights
from tersify.methods.rate.prices import bits_of_weights, coded_bits
from tersify.methods.rate.transform import ExpectedBits, RateTransform
from tersify.methods.registry import register
from tersify.methods.threshold import MOST_STEPS_BETWEEN, is_measured_at
from tersify.schedules import Progress
from tersify.tensor import CompressedTensor

DEFAULT_LAMBDA = 0.1
REFRESHES = 64  # in a run: how often the coder is asked
# of training: from there on every weight keeps its price, so that codes settle
STANDS_FROM = 0.85
ROUNDS_WITHOUT_TRAINING = 8
ROUNDS_AT_THE_END = 3
# of λ, for a layer of few weights: it saves little, and the whole network needs it
LEAST_PART = 0.1
HALVINGS = 20
LEAST_LAMBDA, MOST_LAMBDA = 1e-7, 1e5
# a weight's price moves half-way to what the coder says, since its neighbours change
# with it
DAMPING = 0.5


@register("rate")
@dataclass(frozen=True, kw_only=True)
class Rate(Method):
    """A weight stays where its square is above λ × the bits it takes in the `.terse`
    file, else it is zero.

    Squares are measured in the mean square of the layer's weights at the beginning.
    Bits are those of the coder's own tables: a weight that stands alone in its kernel,
    filter or channel costs more than one among others, so that these vanish where that
    is cheapest. The loss gains `loss` × λ × bits a weight. λ rises to `lam` over the
    fraction `warmup` of training; with `bytes` it is led, over the same time, to where the
    whole file has that size. Alone it prunes; before a quantizer it gives the zeros,
    and that one the levels.
    """

    bytes: int | None = None
    lam: float = DEFAULT_LAMBDA
    warmup: float = 0.6
    loss: float = 0.5

    quantizes = False

    def __post_init__(self) -> None:
        check_range("lam (λ)", self.lam, low=0.0, high=1000.0)
        check_range(
            "warmup (λ is reached there)", self.warmup, low=0.0, high=STANDS_FROM
        )
        check_range("loss", self.loss, low=0.0, high=1e6)
        if self.bytes is not None:
            check_whole("bytes", self.bytes, low=1)
            if self.lam != DEFAULT_LAMBDA:
                raise ValueError(
                    f"lam (λ = {self.lam}) and bytes both say how small the file gets; give one of them"
                )

    def transform(self, site: Site) -> Transform:
        return RateTransform(site.latent)

    def bind(self, sites: Sequence[Site]) -> Bound:
        return Bound(
            sites, list(map(self.transform, sites)), RateState(sites[0].latent)
        )

    def update(self, bound: Bound, step: Step) -> None:
        progress = step.progress
        if not step.without_training and not is_measured_at(progress):
            return
        state, transforms = _state(bound), bound.each(RateTransform)
        entering = bound.entering()
        # Sizes are measured at the beginning only: squares that are measured in a
        # moving unit would let λ drift. `part` makes a small layer's λ smaller, as
        # LEAST_PART says.
        if progress.step <= MOST_STEPS_BETWEEN or step.without_training:
            largest = max(value.numel() for value in entering)
            for transform, value in zip(transforms, entering, strict=True):
                part = (value.numel() / largest + LEAST_PART) / (1 + LEAST_PART)
                transform.size.copy_(
                    (value.square().mean() * part).sqrt().clamp(min=1e-12)
                )
        # The last rounds matter for the promised size: each asks the coder about the
        # weights that the round before kept.
        ends = progress.step + 1 >= progress.steps
        for _ in range(
            ROUNDS_WITHOUT_TRAINING
            if step.without_training
            else ROUNDS_AT_THE_END
            if ends
            else 1
        ):
            if ends or _asks_the_coder(progress):
                assert step.packed is not None
                moves = step.without_training or progress.fraction <= STANDS_FROM
                self._refresh(bound, state, entering, step.packed(), moves=moves)
            fraction = 1.0 if step.without_training else progress.fraction
            # A cubic that rises fast at first, while there is time to recover (Zhu and
            # Gupta 2017).
            risen = (
                1 - (1 - min(fraction / self.warmup, 1.0)) ** 3 if self.warmup else 1.0
            )
            scores, bits = _scores(transforms, entering, state.lam)
            if self.bytes is None:
                lam = torch.full_like(state.lam, max(self.lam * risen, LEAST_LAMBDA))
            else:
                wanted = self.bytes + (state.first_bytes - self.bytes).clamp(min=0) * (
                    1 - risen
                )
                # Prices of single weights do not add up to the size of the file. They
                # are taken in proportion: coded/taken file bits for each bit of price.
                lam = _lambda_for(
                    (8 * wanted - state.rest) * state.taken / state.coded, scores, bits
                )
            state.bits.copy_(
                state.rest + state.coded * (bits * (scores > lam)).sum() / state.taken
            )
            for transform in transforms:
                # Limits hold λ as a factor, so a new λ is one multiplication.
                transform.limit.mul_(lam / state.lam)
            state.lam.copy_(lam)

    def _refresh(
        self,
        bound: Bound,
        state: RateState,
        entering: Sequence[Tensor],
        packed: Mapping[str, CompressedTensor | Tensor],
        *,
        moves: bool,
    ) -> None:
        """Ask the coder what the file takes now and, where prices may move, what each
        weight of it takes.
        """
        transforms = bound.each(RateTransform)
        file = priced(packed)
        # Before the limits move: `taken` must belong to the weights that `packed`
        # holds.
        kept = torch.cat(
            [
                t.kept(value).reshape(-1)
                for t, value in zip(transforms, entering, strict=True)
            ]
        )
        if moves:
            for transform, bits in zip(
                transforms,
                bits_of_weights(bound.sites, transforms, packed, file),
                strict=True,
            ):
                limit = bits * (state.lam * transform.size.square())
                transform.limit.copy_(
                    torch.where(
                        transform.limit > 0, transform.limit.lerp(limit, DAMPING), limit
                    )
                )
        _, bits = _scores(transforms, entering, state.lam)
        state.taken.copy_((bits * kept).sum().clamp(min=1.0))
        coded = coded_bits([site.name for site in bound.sites], packed, file)
        if state.coded == 0:
            state.first_bytes.fill_(file.size_bytes)
        state.coded.fill_(coded)
        state.rest.fill_(rest := 8 * file.size_bytes - coded)
        if self.bytes is not None and rest > 8 * self.bytes:
            raise ValueError(
                f"bytes must leave room for all that these weights are not, {rest / 8:,.0f} bytes, got {self.bytes:,}; "
                "give more, a narrower network, or fewer bits to norms and biases"
            )

    def penalty(self, bound: Bound) -> Tensor | None:
        if not self.loss:
            return None
        state, transforms = _state(bound), bound.each(RateTransform)
        latents = [site.latent for site in bound.sites]
        value = state.lam * state.bits / sum(latent.numel() for latent in latents)
        return self.loss * ExpectedBits.apply(
            value, transforms, state.constants, *latents
        )

    def prepare(self, bound: Bound, weights: FlatWeights) -> Tensor:
        values = weights.values.detach()
        limits = weights.flatten([t.limit for t in bound.each(RateTransform)])
        return torch.where(values.square() > limits, values, 0.0)

    def status(self, bound: Bound) -> dict[str, float]:
        state = _state(bound)
        return {"λ": float(state.lam), "kB": float(state.bits) / 8000}


class RateState(nn.Module):
    """What all weights share: λ, and what the coder said when it was asked last."""

    lam: Tensor
    bits: Tensor  # expected of the whole file now
    first_bytes: Tensor  # of the whole file when the coder was asked first
    # bits of these weights when it was asked last, and of all else in the file
    coded: Tensor
    rest: Tensor
    taken: Tensor  # the prices of all weights that were no zeros then, in bits

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        # made of the weights' sizes alone, so nothing to save
        self.constants: dict[str, Tensor] = {}
        for name in ("lam", "bits", "first_bytes", "coded", "rest", "taken"):
            start = LEAST_LAMBDA if name == "lam" else 0.0
            self.register_buffer(name, torch.tensor(start, device=like.device))


def _state(bound: Bound) -> RateState:
    assert isinstance(bound.shared, RateState)
    return bound.shared


def _asks_the_coder(progress: Progress) -> bool:
    # True where the last stretch of MOST_STEPS_BETWEEN steps crossed a multiple of
    # `between`: `update` sees only measured steps and may step over the multiple
    # itself.
    between = max(1, progress.steps // REFRESHES)
    return (
        progress.step // between != (progress.step - MOST_STEPS_BETWEEN) // between
        or progress.step == 0
    )


def _scores(
    transforms: Sequence[RateTransform], entering: Sequence[Tensor], lam: Tensor
) -> tuple[Tensor, Tensor]:
    """For every weight, the largest λ at which it is kept, and its price in bits."""
    each = [t.limit / (lam * t.size.square()) for t in transforms]
    scores = [
        value.square() / (bits * t.size.square()).clamp(min=1e-30)
        for t, bits, value in zip(transforms, each, entering, strict=True)
    ]
    return torch.cat([s.reshape(-1) for s in scores]), torch.cat(
        [b.reshape(-1) for b in each]
    )


def _lambda_for(wanted_bits: Tensor, scores: Tensor, bits: Tensor) -> Tensor:
    """The λ at which the weights that stay take as many bits, found by halving without
    waiting for a device.
    """
    # Halved on a logarithmic scale, since λ spans twelve powers of ten.
    low = torch.full_like(wanted_bits, LEAST_LAMBDA).log()
    high = torch.full_like(wanted_bits, MOST_LAMBDA).log()
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        too_many = (bits * (scores > middle.exp())).sum() > wanted_bits
        low, high = (
            torch.where(too_many, middle, low),
            torch.where(too_many, high, middle),
        )
    # The upper end: below MOST_LAMBDA the bits there are never above the wanted ones.
    return high.exp()
