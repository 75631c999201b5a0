"""Weights share a few values found by k-means, which training then moves (Han et al.,
Deep Compression).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tersify.checks import check_range, check_whole
from tersify.methods.base import Bound, Method, Site, Step, Transform
from tersify.methods.flat_weights import FlatWeights, Prepared
from tersify.methods.pruning.schedule import first_step
from tersify.methods.registry import register
from tersify.methods.relative_levels import AllLevels, RelativeLevels, levels_of
from tersify.methods.weight_math import dense, straight_through
from tersify.tensor import CompressedTensor

ITERATIONS = 60


@register("kmeans")
@dataclass(frozen=True, kw_only=True)
class KMeans(Method):
    """At the fraction `begin` of training each tensor's nonzero weights fall into 2^bits −
    1 clusters; zero stays zero.

    The clusters start evenly spaced between the smallest and the largest weight. From
    then on a weight keeps its cluster, and with `learn` the cluster's value is trained
    by the sum of its members' gradients.
    """

    bits: int = 5
    begin: float = 0.5
    learn: bool = True

    def __post_init__(self) -> None:
        check_whole("bits", self.bits, low=1, high=8)
        check_range("begin", self.begin, low=0.0, high=1.0)

    @property
    def needs_length(self) -> bool:
        return self.begin > 0

    def transform(self, site: Site) -> Transform:
        return SharedTransform(self, site.entering())

    def update(self, bound: Bound, step: Step) -> None:
        if step.without_training or step.progress.step == first_step(
            self.begin, step.progress
        ):
            for site, transform in zip(
                bound.sites, bound.each(SharedTransform), strict=True
            ):
                # Packing after training calls this as well, and must not cluster
                # trained levels again.
                if not (step.without_training and bool(transform.clustered)):
                    transform.cluster_(site.entering(transform))

    @torch.no_grad()
    def prepare(self, bound: Bound, weights: FlatWeights) -> Prepared:
        latents, count = weights.values, 2**self.bits
        codes, clustered = bound.buffers("codes"), bound.buffers("clustered")
        levels = AllLevels(levels_of(bound, "levels"), weights)
        # code 0 is zero
        codebooks = torch.nn.functional.pad(levels.values.view(len(codes), -1), (1, 0))
        places = weights.remembered(
            "codes", codes, lambda: weights.flatten(codes) + weights.owners() * count
        )
        # A zero is not a member of its cluster: it sends its level no gradient.
        learns = latents != 0
        # All tensors form their clusters in the same step, so from there on there is
        # nothing to choose.
        if weights.remembered(
            "all formed", clustered, lambda: bool(torch.stack(clustered).all())
        ):
            formed = None
        else:
            formed = torch.stack(clustered)[weights.owners()]
            learns &= formed
        shared = torch.where(
            latents != 0, codebooks.view(-1).index_select(0, places), 0.0
        )

        def gradient(given: Tensor) -> Tensor:
            sums = (
                torch.zeros_like(codebooks)
                .view(-1)
                .index_add_(0, places, torch.where(learns, given, 0.0))
            )
            return levels.to_factors(sums.view_as(codebooks)[:, 1:])

        return Prepared(
            shared if formed is None else torch.where(formed, shared, latents),
            None,
            gradient,
        )


class SharedTransform(Transform):
    """Passes the latent until it is clustered."""

    codes: Tensor
    clustered: Tensor

    def __init__(self, method: KMeans, weight: Tensor) -> None:
        super().__init__()
        # One code is zero's.
        clusters = 2**method.bits - 1
        self.levels = RelativeLevels(
            weight.new_zeros(clusters), members=weight.numel() // clusters
        )
        self.levels.factor.requires_grad_(method.learn)
        self.register_buffer("codes", torch.zeros_like(weight, dtype=torch.uint8))
        self.register_buffer(
            "clustered", torch.zeros((), dtype=torch.bool, device=weight.device)
        )

    @torch.no_grad()
    def cluster_(self, weight: Tensor) -> None:
        # Zeros come from a pruner and have code 0 to themselves; they would draw a
        # centre to zero.
        centres = nearest_means(weight[weight != 0], len(self.levels.start))
        # A weight belongs to its nearest centre, so clusters part half way between two.
        edges = (centres[1:] + centres[:-1]) / 2
        self.codes.copy_(
            torch.where(
                weight == 0, 0, torch.bucketize(weight.contiguous(), edges) + 1
            ).to(torch.uint8)
        )
        self.levels.start.copy_(centres)
        self.levels.factor.fill_(1.0)
        self.clustered.fill_(True)

    def codebook(self) -> Tensor:
        levels = self.levels()
        return torch.cat([levels.new_zeros(1), levels])

    def forward(self, latent: Tensor) -> Tensor:
        shared = (
            self.codebook()
            .index_select(0, self.codes.reshape(-1).int())
            .view(latent.shape)
        )
        # a pruner may go on after the clustering
        shared = torch.where(latent.detach() == 0, 0.0, shared)
        return torch.where(self.clustered, straight_through(shared, latent), latent)

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        if bool(self.clustered):
            codes = torch.where(dense(upstream) == 0, 0, self.codes).to(torch.uint8)
            return CompressedTensor(
                shape=tuple(codes.shape), codes=codes, codebook=self.codebook().detach()
            )
        if isinstance(upstream, CompressedTensor):
            return upstream
        weight = dense(upstream)
        return CompressedTensor(
            shape=tuple(weight.shape),
            codes=torch.ones_like(weight, dtype=torch.uint8),
            values=weight.flatten(),
        )


def nearest_means(values: Tensor, clusters: int) -> Tensor:
    """Cluster centres in ascending order: Lloyd's algorithm from an even grid. The
    centre of an empty cluster stays where it is.
    """
    if not values.numel():
        return values.new_zeros(clusters)
    # Sorted once. After that a cluster is a range of indices, and its mean the
    # difference of two prefix sums.
    ordered = values.flatten().double().sort().values
    sums = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])
    fraction = torch.linspace(0, 1, clusters, dtype=torch.float64, device=values.device)
    centres = ordered[0] + (ordered[-1] - ordered[0]) * fraction
    for _ in range(ITERATIONS):
        cuts = torch.searchsorted(ordered, (centres[1:] + centres[:-1]) / 2)
        bounds = torch.cat([cuts.new_zeros(1), cuts, cuts.new_full((1,), len(ordered))])
        counts = bounds.diff()
        means = sums[bounds].diff() / counts.clamp_min(1)
        # An empty cluster stays, and its neighbours may pass it: sorted, so that the
        # next cuts are ascending.
        moved = torch.where(counts > 0, means, centres).sort().values
        # Lloyd's steps have converged: further ones would repeat this one.
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres.to(values.dtype)
