"""Codes of n bits for a small table of m-bit words, with a virtual bit shift (Nicodemo
et al. 2020).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tersify.checks import check_choice, check_whole
from tersify.methods.base import Bound, Method, Site, Step, Transform
from tersify.methods.flat_weights import FlatWeights, Prepared
from tersify.methods.lookup.fit import MOST_FRACTION_BITS, Fitted, fit_table
from tersify.methods.lookup.range_split import interval_counts
from tersify.methods.registry import register
from tersify.methods.relative_levels import AllLevels, RelativeLevels, levels_of
from tersify.methods.weight_math import dense, straight_through
from tersify.tensor import CompressedTensor, TableFormat

# Comparisons whose results a core's second cache holds.
MOST_COMPARED = 1 << 20
FITS = ("paper", "nearest", "lloyd", "optimal", "sensitivity")


@register("lookup")
@dataclass(frozen=True, kw_only=True)
class Lookup(Method):
    """Each weight becomes one of 2^n words of m bits; words near zero count in steps
    2^k times finer.

    fit: `paper` (interval means, codes by interval), `nearest` (the paper's levels,
    codes by distance), `lloyd` (Lloyd's steps from there), `optimal` (the least squared
    error that such a table can have) and `sensitivity` (the same, each weight counted
    by its squared gradient over the calibration batches). placement: where the first
    three put their intervals, `range-split` by `ratio`, `p_start`, `p_stop`, or
    `uniform`, which is plain n-bit fixed point. shift: whether k may differ from 0;
    without `k` it is chosen. integer_bits: bits before the point, chosen where not
    given; weights beyond them go to the largest word and are counted. In training the
    codes follow the latents, and with `learn` the table is learned too.
    """

    n: int = 4
    m: int = 8
    fit: str = "optimal"
    placement: str = "range-split"
    shift: bool = True
    ratio: float | None = None
    p_start: float = 0.04
    p_stop: float = 0.96
    k: int | None = None
    integer_bits: int | None = None
    sign_in_code: bool = False
    per_channel: bool = False
    force_zero: bool = False
    learn: bool = True

    def __post_init__(self) -> None:
        check_choice("fit", self.fit, FITS)
        check_choice("placement", self.placement, ("range-split", "uniform"))
        check_whole("n", self.n, low=1, high=8)
        check_whole("m", self.m, low=self.n, high=10)
        if self.k is not None:
            check_whole("k", self.k, low=0, high=MOST_FRACTION_BITS - self.m)
            if self.k and not self.shift:
                raise ValueError(
                    f"k = {self.k} is a shift; set shift = true, or leave k out"
                )
        if self.integer_bits is not None:
            check_whole(
                "integer_bits", self.integer_bits, low=-MOST_FRACTION_BITS, high=16
            )
        if not 0 < self.p_start < self.p_stop < 1:
            raise ValueError(
                f"0 < p_start < p_stop < 1 must hold, got {self.p_start} and {self.p_stop}"
            )
        if self.ratio is not None and not 0 < self.ratio < 2**self.n:
            raise ValueError(
                f"ratio must lie between 0 and 2^n = {2**self.n}, got {self.ratio!r}"
            )
        if self.placement == "uniform" and self.fit not in ("paper", "nearest"):
            raise ValueError(
                f"a uniform placement leaves nothing to fit; set fit = 'nearest', got {self.fit!r}"
            )
        if self.placement == "range-split" and (
            self.ratio is not None or self.fit in ("paper", "nearest", "lloyd")
        ):
            interval_counts(self.n, self.ratio or 1.0, self.p_start, self.p_stop)

    @property
    def keeps_zeros(self) -> bool:  # type: ignore[override]
        return self.force_zero or self.placement == "uniform"

    @property
    def needs_calibration(self) -> bool:
        return self.fit == "sensitivity"

    @property
    def has_own_edges(self) -> bool:
        """Whether codes are told by the intervals that the words were fitted in, and
        not by the nearest word.
        """
        return self.fit == "paper" and self.placement == "range-split"

    @property
    def needs_length(self) -> bool:
        return False

    def transform(self, site: Site) -> Transform:
        return LookupTransform(self, site)

    def update(self, bound: Bound, step: Step) -> None:
        if not step.without_training:
            if step.progress.step == 0:  # from there on checkpoints carry it
                for transform in bound.each(LookupTransform):
                    transform.in_training.fill_(True)
            return
        # Without training, a pruner before this one reaches its fraction of zeros only
        # now.
        for site, transform in zip(
            bound.sites, bound.each(LookupTransform), strict=True
        ):
            # A table that was trained must not be fitted again, and one that comes
            # first has seen its weight already.
            if site.chain[0] is not transform and not transform.in_training:
                transform.take_(self.fitted(site, site.entering(transform)))

    @torch.no_grad()
    def prepare(self, bound: Bound, weights: FlatWeights) -> Prepared:
        own_steps, own_edges = bound.buffers("steps"), bound.buffers("edges")
        levels = AllLevels(levels_of(bound, "levels"), weights)
        steps = weights.remembered("steps", own_steps, lambda: torch.cat(own_steps))
        # Learned levels may pass each other; a sorted table lets a search find codes.
        # `order` leads gradients back to the unsorted levels.
        words, order = nearest_words(self, levels.values.view_as(steps), steps).sort(
            dim=1
        )
        if self.has_own_edges:
            edges = weights.remembered("edges", own_edges, lambda: torch.cat(own_edges))
        else:
            edges = middles(words)
        codes = codes_of_all(
            weights.values, edges, weights.runs(per_channel=self.per_channel)
        )
        first = weights.constant(
            "first word",
            lambda: weights.owners(per_channel=self.per_channel) * 2**self.n,
        )
        places = codes + first

        def gradient(given: Tensor) -> Tensor:
            sums = (
                torch.zeros_like(words)
                .view(-1)
                .index_add_(0, places, given)
                .view_as(words)
            )
            return levels.to_factors(torch.zeros_like(sums).scatter_(1, order, sums))

        return Prepared(words.view(-1).index_select(0, places), None, gradient)

    def status(self, bound: Bound) -> dict[str, float]:
        saturated = sum(int(t.saturated) for t in bound.each(LookupTransform))
        return {"saturated": float(saturated)} if saturated else {}

    def fitted(self, site: Site, weight: Tensor) -> Fitted:
        """The table for this weight, or an error that names it."""
        rows = (
            weight.detach()
            .double()
            .cpu()
            .reshape(len(weight) if self.per_channel else 1, -1)
            .numpy()
        )
        if not np.isfinite(rows).all():
            raise ValueError(
                f"{site.name!r} holds NaN or infinite weights; a table cannot be fitted to them"
            )
        if self.placement != "uniform" and rows.shape[1] < 2**self.n:
            raise ValueError(
                f"{site.name!r} has {rows.shape[1]} weights for a table of {2**self.n}; take fewer bits"
                f"{', one table for the tensor' if self.per_channel else ''} or leave it out with a rule of its own"
            )
        importance = None
        if site.sensitivity is not None and self.fit == "sensitivity":
            importance = site.sensitivity.double().cpu().reshape(rows.shape).numpy()
        result = fit_table(rows, self, importance)
        if result.saturated:
            warnings.warn(
                f"{site.name!r}: {result.saturated} of {rows.size} weights lie beyond the table's format and go to its "
                f"largest words (integer_bits = {result.format.integer_bits})",
                stacklevel=2,
            )
        return result


class LookupTransform(Transform):
    beside_the_weight = frozenset(
        {"shift_and_integer_bits", "saturated", "in_training"}
    )

    edges: Tensor
    steps: Tensor
    shift_and_integer_bits: Tensor
    saturated: Tensor
    in_training: Tensor

    def __init__(self, method: Lookup, site: Site) -> None:
        super().__init__()
        self.method = method
        weight = site.entering()
        tables = len(weight) if method.per_channel else 1
        shape = (tables, 2**method.n)
        self.levels = RelativeLevels(
            weight.new_zeros(shape), members=weight.numel() // tables
        )
        self.levels.factor.requires_grad_(method.learn)
        self.register_buffer("steps", weight.new_zeros(shape))
        self.register_buffer("edges", weight.new_zeros(tables, 2**method.n - 1))
        self.register_buffer(
            "shift_and_integer_bits", torch.zeros(2, dtype=torch.int64)
        )
        self.register_buffer("saturated", torch.zeros((), dtype=torch.int64))
        self.register_buffer("in_training", torch.zeros((), dtype=torch.bool))
        self.take_(method.fitted(site, weight))

    @torch.no_grad()
    def take_(self, fitted: Fitted) -> None:
        form = fitted.format
        # A word's step says in which partition it is; it keeps that step while its
        # level is learned, so the format stays representable.
        internal = form.is_internal(fitted.levels)
        self.levels.start.copy_(torch.from_numpy(fitted.levels))
        self.levels.factor.fill_(1.0)
        self.steps.copy_(
            torch.from_numpy(np.where(internal, form.fine_step, form.step))
        )
        self.edges.copy_(torch.from_numpy(fitted.edges))
        self.shift_and_integer_bits.copy_(torch.tensor([form.k, form.integer_bits]))
        self.saturated.fill_(fitted.saturated)

    def format(self) -> TableFormat:
        k, integer_bits = self.shift_and_integer_bits.tolist()
        method = self.method
        return TableFormat(
            n=method.n,
            m=method.m,
            k=k,
            integer_bits=integer_bits,
            sign_in_code=method.sign_in_code,
        )

    def words(self) -> Tensor:
        """The levels as the words can store them, ascending; a learned level stays in
        its partition.
        """
        return stored_words(self.method, self.levels(), self.steps)

    def codes(self, rows: Tensor, words: Tensor) -> Tensor:
        edges = self.edges if self.method.has_own_edges else middles(words)
        return torch.searchsorted(edges.contiguous(), rows.contiguous(), right=True)

    def forward(self, latent: Tensor) -> Tensor:
        rows = latent.detach().reshape(len(self.edges), -1)
        words = self.words()
        codes = self.codes(rows, words.detach())
        return straight_through(words.gather(1, codes).reshape(latent.shape), latent)

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        weight = dense(upstream)
        words = self.words().detach()
        # Codes count ascending words here, and are turned to the stored order below.
        codes = self.codes(weight.reshape(len(words), -1), words)
        # Code 0 must be the zero level where there is one, so each table starts there
        # and wraps around.
        zero = (words == 0).int().argmax(1, keepdim=True)
        order = (
            torch.arange(words.shape[1], device=words.device) + zero
        ) % words.shape[1]
        codebook = words.gather(1, order)
        codes = ((codes - zero) % words.shape[1]).to(torch.uint8).reshape(weight.shape)
        one_table = not self.method.per_channel
        return CompressedTensor(
            shape=tuple(weight.shape),
            codes=codes,
            codebook=codebook[0] if one_table else codebook,
            axis=None if one_table else 0,
            format=self.format().to_mapping(saturated=int(self.saturated)),
        )


def stored_words(method: Lookup, levels: Tensor, steps: Tensor) -> Tensor:
    """Rows of levels as words in those steps, ascending."""
    return (
        straight_through(nearest_words(method, levels.detach(), steps), levels)
        .sort(dim=1)
        .values
    )


def nearest_words(method: Lookup, levels: Tensor, steps: Tensor) -> Tensor:
    lowest, highest = word_range(method)
    return (levels / steps).round().clamp(lowest, highest) * steps


def codes_of_all(
    values: Tensor, edges: Tensor, runs: Sequence[tuple[int, int]]
) -> Tensor:
    """The code of each value by its own table's row of edges. A run is (values of a
    table, tables).

    One call searches all tables of a run: layers of equal size mostly follow each
    other.
    """
    parts = values.split([size * tables for size, tables in runs])
    rows = edges.split([tables for _, tables in runs])
    found = [
        codes_by_edges(row, part.view(len(row), -1)).view(-1)
        for part, row in zip(parts, rows, strict=True)
    ]
    return torch.cat(found) if len(found) > 1 else found[0]


def codes_by_edges(edges: Tensor, values: Tensor) -> Tensor:
    """How many edges of its row each value has passed: edges are (tables, 2^n - 1),
    values (tables, size).
    """
    # A boolean for each edge and value must be held at once.
    compared = edges.shape[1] * values.numel()
    if not values.is_cpu or compared > MOST_COMPARED:
        return torch.searchsorted(edges, values, right=True, out_int32=True)
    # A binary search guesses every branch anew, and is wrong half of the time. As many
    # comparisons as there are edges need no guess, and take a sixth of the time for 16
    # levels. A value that is no number has passed every edge in both ways.
    below = values.new_empty(len(edges), edges.shape[1], values.shape[1])
    torch.lt(values[:, None], edges[:, :, None], out=below)
    return edges.shape[1] - below.sum(1).to(torch.int32)


def middles(words: Tensor) -> Tensor:
    return (words[:, 1:] + words[:, :-1]) / 2


def word_range(method: Lookup) -> tuple[int, int]:
    form = TableFormat(n=method.n, m=method.m, sign_in_code=method.sign_in_code)
    return form.lowest, form.highest
