"""Pruning: a score × a structure × a scope × a schedule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tersify.checks import check_choice, check_range, check_whole
from tersify.methods.base import Bound, Method, Network, Site, Step
from tersify.methods.flat_weights import FlatWeights
from tersify.methods.pruning.choice import (
    SCOPES,
    choose_globally,
    choose_in_layers,
    choose_in_rows,
    least_kept,
    lowest_of_shards,
)
from tersify.methods.pruning.mask import LearnedMask, MaskTransform, SoftMask
from tersify.methods.pruning.schedule import Pace
from tersify.methods.pruning.scores import SCORES, Score, score_named
from tersify.methods.pruning.shared_units import with_units
from tersify.methods.pruning.structures import (
    GROUPED,
    Layer,
    TiledLayer,
    UnitLayer,
    n_of_m,
    tiling_named,
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
    scope: layer, global (layers compete; each keeps a share `floor` of its units) or
    row (each output by itself). The amount is a share (`sparsity`, or 1 − `density`) or
    a `count` of units, of each scope. schedule: see `Pace`; it rises from the share
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
        check_choice("score", self.score, SCORES)
        check_choice("scope", self.scope, SCOPES)
        check_whole("seed", self.seed)
        _ = self._pace, tiling_named(self.structure)
        self._check_amount()
        check_range("floor", self.floor, low=0.0, high=1.0, high_open=True)
        if self.floor and self.scope != "global":
            raise ValueError(
                f"floor keeps a share of each layer when all compete; set scope = 'global', got {self.scope!r}"
            )
        if (
            self.scope == "global"
            and self.count is None
            and self.share > 1 - self.floor
        ):
            raise ValueError(
                f"sparsity {self.share:g} leaves less than the floor {self.floor:g} of every layer"
            )
        if self.scope == "row" and self.structure in GROUPED:
            raise ValueError(
                f"a {self.structure} spans whole rows or columns; set scope = 'layer' or 'global'"
            )
        check_range(
            "threshold",
            self.threshold,
            low=0.0,
            high=1.0,
            low_open=True,
            high_open=True,
        )
        for name in ("head_start", "lines"):
            value = getattr(self, name)
            check_range(name, value, low=0.0, high=1e6)
            if value and self.score != "movement":
                raise ValueError(
                    f"{name} belongs to score 'movement', got {value!r} with {self.score!r}; leave it out"
                )
        for name in ("lam", "gain"):
            check_range(name, getattr(self, name), low=0.0, high=1e6, low_open=True)

    def _check_amount(self) -> None:
        given = [
            name
            for name in ("sparsity", "density", "count")
            if getattr(self, name) is not None
        ]
        fixed = (
            "structure 'N:M'"
            if n_of_m(self.structure)
            else "score 'soft-movement'"
            if self._is_soft
            else ""
        )
        if fixed and given:
            raise ValueError(
                f"{fixed} leaves no amount to choose; leave {given[0]} out, got {getattr(self, given[0])!r}"
            )
        if len(given) > 1:
            raise ValueError(
                f"the amount is one of sparsity, density and count, got {' and '.join(given)}"
            )
        if self.sparsity is not None:
            check_range("sparsity", self.sparsity, low=0.0, high=1.0, high_open=True)
        if self.density is not None:
            check_range("density", self.density, low=0.0, high=1.0, low_open=True)
        if self.count is not None:
            check_whole("count", self.count, low=0)
        if n_of_m(self.structure) and self.scope != "layer":
            raise ValueError(
                "structure 'N:M' chooses among every M weights; leave scope out"
            )
        if (
            not 0
            <= self.start
            <= (1 if self.count is not None or self._is_soft else self.share)
        ):
            raise ValueError(
                f"start must be a share between 0 and the final sparsity, got {self.start!r}"
            )

    @property
    def share(self) -> float:
        """The final share of zeros, where the amount is no count."""
        if nm := n_of_m(self.structure):
            return 1 - nm[0] / nm[1]
        if self.density is not None:
            return 1 - self.density
        return 0.9 if self.sparsity is None else self.sparsity

    @property
    def _is_soft(self) -> bool:
        return self.score == "soft-movement"

    @property
    def _pace(self) -> Pace:
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
        at_once = self.schedule == "one-shot" and self.begin == 0 and not self._is_soft
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
        plain = [
            bool(site.units) and not any(units.scored for units in site.units)
            for site in sites
        ]
        masks = [
            MaskTransform(s.entering()) if p else self._score.transform(s)
            for s, p in zip(sites, plain, strict=True)
        ]
        if self.schedule == "frozen":
            for site, mask in zip(sites, masks, strict=True):
                mask.mask.copy_(site.entering() != 0)
        bound = PruneBound(sites, masks, layers=self._layers(sites, masks))
        if not self._is_soft and self.schedule != "frozen":
            self._check_leaves_something(bound)
        return bound

    def _layers(
        self, sites: Sequence[Site], masks: Sequence[MaskTransform]
    ) -> list[Layer]:
        tiling = tiling_named(self.structure)
        if tiling is not None:
            fitting = [
                (s, m)
                for s, m in zip(sites, masks, strict=True)
                if tiling.fits(s.latent.shape)
            ]
            if not fitting:
                raise ValueError(
                    f"{sites[0].name!r} has no {self.structure}; choose another structure or other weights"
                )
            return [TiledLayer(site, mask, tiling) for site, mask in fitting]
        groups: dict[str, list[tuple[Site, MaskTransform, int]]] = {}
        for site, mask in zip(sites, masks, strict=True):
            for part, units in enumerate(site.units):
                groups.setdefault(units.group, []).append((site, mask, part))
        return [UnitLayer(members) for members in groups.values()]

    def _check_leaves_something(self, bound: PruneBound) -> None:
        shapes = {
            layer.name: layer.scores(lambda site, mask: site.entering()).shape
            for layer in bound.layers
        }
        units = {
            name: shape[-1] if self._in_rows else shape.numel()
            for name, shape in shapes.items()
        }
        if self.scope == "global":
            wanted, total = self._pruned(sum(units.values()), 1.0), sum(units.values())
            room = sum(
                count - least_kept(count, self.floor) for count in units.values()
            )
            if wanted > room:
                raise ValueError(
                    f"{wanted} of {total} units are to go, and each of {len(units)} layers keeps one, or its floor: "
                    f"{room} can go at most; prune less or lower the floor"
                )
            return
        for name, count in units.items():
            if count and self._pruned(count, 1.0) >= count:
                what = (
                    "weights"
                    if self.structure == "element"
                    else f"units ({self.structure})"
                )
                raise ValueError(
                    f"{name!r} has {count} {what} and would lose all of them ({self._pruned(count, 1.0)}); prune less, "
                    "or give it a rule of its own"
                )

    @property
    def _in_rows(self) -> bool:
        return self.scope == "row" or n_of_m(self.structure) is not None

    def _pruned(self, units: int, done: float) -> int:
        """How many of so many units are zero when the schedule is so far."""
        final = self.count if self.count is not None else self.share * units
        first = self.start * (final if self.count is not None else units)
        return round(first + (final - first) * done)

    def update(self, bound: Bound, step: Step) -> None:
        assert isinstance(bound, PruneBound)
        if self._is_soft:
            for mask in bound.each(SoftMask):
                mask.pressure.fill_(self.lam * self._pace.done(step.progress))
        if self._pace.is_due(step):
            self._choose_(bound, step)

    def prepare(
        self, bound: Bound, weights: FlatWeights
    ) -> Tensor | tuple[Tensor, Tensor] | None:
        masks = bound.each(MaskTransform)
        kept = weights.flatten([mask.mask for mask in masks])
        masked = torch.where(kept, weights.values, 0.0)
        scores = [mask.score_parameter for mask in masks]
        if all(score is None for score in scores):
            return masked, kept
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
        done = self._pace.done(step.progress)
        if step.without_training and not any(
            score.has_seen_data(m) for m in bound.scored()
        ):
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
        # One by one, unless all compete: the scores of a large network would take as
        # much memory as itself.
        scores = (
            layer.scores(lambda site, mask: score.of(site.entering(mask), mask, site))
            for layer in bound.layers
        )
        for layer, kept in zip(bound.layers, self._kept(scores, done), strict=True):
            layer.keep_(kept)

    def _choose_among_shards_(self, bound: PruneBound, done: float) -> None:
        """The same choice where each rank has rows of the weight and of the mask
        (magnitudes of elements only).
        """
        for site, mask in zip(bound.sites, bound.each(MaskTransform), strict=True):
            scores = own_part(site.latent.detach()).abs().reshape(-1)
            gone = lowest_of_shards(scores, self._pruned(site.latent.numel(), done))
            own_part(mask.mask).copy_(~gone.view_as(own_part(mask.mask)))

    def _kept(self, scores: Iterable[Tensor], done: float) -> Iterable[Tensor]:
        if self._is_soft:
            return (_above(each, self.threshold) for each in scores)
        if self.scope == "global":
            return choose_globally(
                list(scores), lambda units: self._pruned(units, done), self.floor
            )
        choose = choose_in_rows if self._in_rows else choose_in_layers
        return choose(scores, lambda units: self._pruned(units, done))


def _above(scores: Tensor, threshold: float) -> Tensor:
    """Those above the threshold, and the best one in any case."""
    kept = scores > threshold
    kept.view(-1)[scores.reshape(-1).argmax()] = True
    return kept


@dataclass(frozen=True, eq=False)
class PruneBound(Bound):
    layers: Sequence[Layer] = ()

    def scored(self) -> list[MaskTransform]:
        """The masks of tensors whose score counts."""
        each = zip(self.sites, self.each(MaskTransform), strict=True)
        return [
            mask
            for site, mask in each
            if not site.units or any(units.scored for units in site.units)
        ]
