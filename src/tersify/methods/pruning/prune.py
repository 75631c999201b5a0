"""Pruning: a score × a structure × a scope × a schedule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tersify.methods.base import Bound, Method, Network, Site, Step
from tersify.methods.flat_weights import FlatWeights
from tersify.methods.pruning.choice import (
    choose_globally,
    choose_in_layers,
    choose_in_rows,
    lowest_of_shards,
    together,
)
from tersify.methods.pruning.mask import LearnedMask, MaskTransform, SoftMask
from tersify.methods.pruning.prune_checks import check_leaves_something, check_settings
from tersify.methods.pruning.pruned_sites import (
    PruneBound,
    above,
    is_scored,
    layers_of,
    scores_of,
    weights_of,
)
from tersify.methods.pruning.schedule import Pace
from tersify.methods.pruning.scores import Score, score_named
from tersify.methods.pruning.shared_units import with_units
from tersify.methods.pruning.structures import (
    GROUPED,
    keep_all_,
    n_of_m,
)
from tersify.methods.registry import register
from tersify.ranks import is_sharded, own_part


@register("prune")
@dataclass(frozen=True, kw_only=True)
class Prune(Method):
    """The units of least worth become zero.

    score: magnitude, movement, soft-movement, taylor (gradient · weight), obd (Optimal
    Brain Damage), random, wanda. structure: element, 'N:M', 'block-RxC', kernel,
    filter, neuron, row (either), channel, head. Filters, neurons and rows take their
    bias and the γ and β of the batch norm behind them along; with an `example` at
    attach, also the filters, neurons and heads of other layers that they are added to.
    scope: layer, global (layers compete; each keeps a fraction `floor` of its units) or
    row (each output by itself). The amount is a fraction (`sparsity`, or 1 − `density`) or
    a `count` of units, of each scope. schedule: see `Pace`; it rises from the fraction
    `start`. Until the schedule ends a pruned weight keeps its latent and can return.
    Learned scores (both movements) go `gain` times as fast as the weights; those of
    movement begin at `head_start` times the weights' magnitudes, and with `lines` each
    row and column has one too, so many times as fast. soft-movement has no amount:
    `lam` weighs the penalty that pushes scores below `threshold`.
    """

    quantizes: ClassVar[bool] = False
    sparsity: float | None = None
    density: float | None = None
    count: int | None = None
    score: str = "magnitude"
    structure: str = "element"
    scope: str = "layer"
    floor: float = 0.0
    schedule: str = "agp"
    start: float = 0.0
    begin: float = 0.0
    end: float = 0.75
    every: int = 1
    cycles: int = 3
    regrow: float = 0.5
    seed: int = 0
    lam: float = 1.0
    threshold: float = 0.1
    gain: float = 10.0
    head_start: float = 0.0
    lines: float = 0.0

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def fraction(self) -> float:
        """The final fraction of zeros, where the amount is no count."""
        if nm := n_of_m(self.structure):
            return 1 - nm[0] / nm[1]
        if self.density is not None:
            return 1 - self.density
        return 0.9 if self.sparsity is None else self.sparsity

    @property
    def is_soft(self) -> bool:
        """Whether a threshold of the scores decides, and no amount."""
        return self.score == "soft-movement"

    @property
    def pace(self) -> Pace:
        """How far pruning has come at each step."""
        return Pace(
            schedule=self.schedule,
            begin=self.begin,
            end=self.end,
            every=self.every,
            cycles=self.cycles,
            regrow=self.regrow,
        )

    @property
    def _score(self) -> Score:
        return score_named(
            self.score,
            seed=self.seed,
            gain=self.gain,
            head_start=self.head_start,
            lines=self.lines,
        )

    @property
    def needs_length(self) -> bool:
        at_once = self.schedule == "one-shot" and self.begin == 0 and not self.is_soft
        return not at_once and self.schedule != "frozen"

    @property
    def needs_calibration(self) -> bool:
        at_once = (
            self.score == "taylor" and self.schedule == "one-shot" and self.begin == 0
        )
        return at_once or self._score.needs == "gradients"

    @property
    def needs_inputs(self) -> bool:
        return self._score.needs == "inputs"

    @property
    def needs_units(self) -> bool:
        return self.structure in ("filter", "neuron", "head")

    def gather(self, sites: Sequence[Site], network: Network) -> Sequence[Site]:
        return (
            with_units(self.structure, sites, network)
            if self.structure in GROUPED
            else sites
        )

    def bind(self, sites: Sequence[Site]) -> Bound:
        masks = list(map(self._mask, sites))
        bound = PruneBound(sites, masks, layers=layers_of(self.structure, sites, masks))
        if not self.is_soft and self.schedule != "frozen":
            check_leaves_something(self, bound)
        return bound

    def _mask(self, site: Site) -> MaskTransform:
        # What has no say in which units go loses its slices with them.
        mask = (
            self._score.transform(site)
            if is_scored(site)
            else MaskTransform(site.entering())
        )
        if self.schedule == "frozen":
            mask.mask.copy_(site.entering() != 0)
        return mask

    @property
    def in_rows(self) -> bool:
        """Whether each row of weights, or each M of them, loses its fraction."""
        return self.scope == "row" or n_of_m(self.structure) is not None

    def pruned(self, units: int, done: float) -> int:
        """How many of so many units are zero when the schedule is so far."""
        # `start` is a fraction of the units, or of the count where a count is given.
        final = self.count if self.count is not None else self.fraction * units
        first = self.start * (final if self.count is not None else units)
        return round(first + (final - first) * done)

    def update(self, bound: Bound, step: Step) -> None:
        assert isinstance(bound, PruneBound)
        if self.is_soft:
            for mask in bound.each(SoftMask):
                mask.pressure.fill_(self.lam * self.pace.done(step.progress))
        # Between two choices masks stand, so weights can settle.
        if self.pace.is_due(step):
            self._choose_(bound, step)

    def prepare(
        self, bound: Bound, weights: FlatWeights
    ) -> Tensor | tuple[Tensor, Tensor] | None:
        masks = bound.each(MaskTransform)
        kept = weights.flatten([mask.mask for mask in masks])
        masked = torch.where(kept, weights.values, 0.0)
        # Companions such as biases have no score and lose their slices with the unit.
        scores = [mask.score_parameter for mask in masks]
        if all(score is None for score in scores):
            return masked, kept
        # All masks of a method have one gain.
        worth = next(
            m.gain for m in masks if m.score_parameter is not None
        ) * weights.learn_scores(scores)
        # only the gradients count: what is worth is subtracted again
        for dim in range(2 if self.lines else 0):
            lines = [
                mask.line_scores[dim]
                if isinstance(mask, LearnedMask) and len(mask.line_scores)
                else None
                for mask in masks
            ]
            worth = worth + self.lines * weights.learn_lines(lines, dim)
        return masked + (worth - worth.detach()) * weights.values.detach()

    def _choose_(self, bound: PruneBound, step: Step) -> None:
        score = self._score
        # 0 … 1 of the way from `start` to the final amount.
        done = self.pace.done(step.progress)
        if step.without_training and not any(map(score.has_seen_data, bound.scored())):
            raise ValueError(
                f"the score {self.score!r} comes from training, and none has taken place; use another score"
            )
        if any(is_sharded(site.latent) for site in bound.sites):
            self._choose_among_shards_(bound, done)
            return
        # where each group takes away from what the others left
        if self.structure in GROUPED:
            for mask in bound.each(MaskTransform):
                mask.mask.fill_(True)
        # A few at a time, unless all compete: the scores of a large network would take
        # as much memory as itself.
        scores = (
            scores
            for layers in together(bound.layers, weights_of)
            for scores in scores_of(layers, score)
        )
        chosen = zip(bound.layers, self._kept(scores, done), strict=True)
        for choices in together(chosen, lambda choice: weights_of(choice[0])):
            keep_all_(choices)

    def _choose_among_shards_(self, bound: PruneBound, done: float) -> None:
        """The same choice where each rank has rows of the weight and of the mask
        (magnitudes of elements only).
        """
        for site, mask in zip(bound.sites, bound.each(MaskTransform), strict=True):
            scores = own_part(site.latent.detach()).abs().reshape(-1)
            gone = lowest_of_shards(scores, self.pruned(site.latent.numel(), done))
            own_part(mask.mask).copy_(~gone.view_as(own_part(mask.mask)))

    def _kept(self, scores: Iterable[Tensor], done: float) -> Iterable[Tensor]:
        if self.is_soft:
            return (above(each, self.threshold) for each in scores)
        if self.scope == "global":
            return choose_globally(
                list(scores), lambda units: self.pruned(units, done), self.floor
            )
        choose = choose_in_rows if self.in_rows else choose_in_layers
        return choose(scores, lambda units: self.pruned(units, done))
