"""A trained network in as few bytes as a price for each bit allows."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from tersify.calibration import Calibration, squared_gradients
from tersify.codec.costs import priced
from tersify.codec.layout import BLOCK_ELEMENTS
from tersify.norm_shifts import follow_, moments_of
from tersify.norms_in_few_bits import coarse_norms
from tersify.rate_distortion.columns import ColumnWeight
from tersify.rate_distortion.fisher import fisher_of
from tersify.rate_distortion.neighbours import (
    NeighbourWeight,
    decide_,
    keeps_levels,
    start,
    widen_,
)
from tersify.recipe.reached_weights import reached_by
from tersify.sites import find_sites
from tersify.tensor import CompressedModel, CompressedTensor
from tersify.tensor.inputs import METADATA, facts_of
from tersify.tensor.model import tied
from tersify.tensor.origin import file_facts, origins_of

ROUNDS = 3
NORM_BITS = 8


class Squeezer:
    """A trained network and a little data; `at` gives it in as few bytes as a price for
    each bit allows.

    Weights of linear layers and convolutions become whole steps, wider for outputs that
    matter less to the loss, and are decided column by column: the columns not yet
    decided take over what the others did to the outputs, as the inputs go together.
    For other weights the damage of a code is the squared change of its weight times the
    mean squared gradient of the loss there, half of it the weight's own and half its
    layer's mean. Weights that the file holds as codes keep their levels. Batch norms
    follow the new weights, and are saved in few bits like biases.
    """

    def __init__(
        self, model: nn.Module, calibration: Calibration | Iterable[tuple[Any, Any]]
    ) -> None:
        self.model, self.calibration = model, Calibration.of(calibration)
        self._origins = origins_of(model)
        sites = reached_by("*", find_sites(model))
        free = [
            site
            for site in sites
            if not self._keeps_levels(site.name)
            and site.latent.numel() <= BLOCK_ELEMENTS
        ]
        fisher = fisher_of(model, free, self.calibration)
        self._columns = [
            ColumnWeight(site.name, site.latent, fisher[site.name])
            for site in free
            if site.name in fisher
        ]
        self._others = [site for site in sites if site.name not in fisher]
        self._sensitivity = self._measured()
        self._moments = moments_of(model, self.calibration)
        damages = [
            (fisher[s.name].diagonal(s.latent.shape) * s.latent.detach().square())
            for s in free
            if s.name in fisher
        ] + [
            s * site.latent.detach().square()
            for s, site in zip(self._sensitivity, self._others, strict=True)
        ]
        count = sum(site.latent.numel() for site in sites)
        # The mean of h·w², the damage of a zero, makes `price` a number without units
        # that fits every network.
        total = float(sum(each.double().sum() for each in damages))
        self._unit = max(total / count, 1e-30)

    def _keeps_levels(self, name: str) -> bool:
        given = self._origins.get(name)
        return given is not None and keeps_levels(given)

    def _measured(self) -> list[Tensor]:
        """How much the weights matter whose inputs are not known."""
        if not self._others:
            return []
        own = squared_gradients(self.model, self._others, self.calibration)
        # The gradient of a batch's mean loss is a mean over its samples, whose gradients
        # are taken for independent; `fisher_of` squares those of single samples.
        batch = max(1, len(next(self.calibration.pairs())[0]))
        # Half of the layer's mean: gradients of a few batches are noisy, and a weight
        # without any would be free to vanish.
        return [(each + each.mean()) / 2 * batch for each in own]

    @torch.no_grad()
    def at(self, price: float) -> CompressedModel:
        """The network where a bit is worth `price` times the mean damage of putting a
        weight to zero; for nothing it stays as it is.
        """
        if price == 0:
            return self._network({})
        cost = price * self._unit
        for weight in self._columns:
            weight.start_(cost)
        others = self._started(cost)
        # Each round prices the codes that the last one left, since tables follow the
        # codes.
        for turn in range(ROUNDS):
            made, most = self._packed(others)
            file = priced(made)
            for column in self._columns:
                # none where it equals another tensor, which is stored for both
                for box in file.boxes_of(column.name, column.device):
                    column.decide_(box, cost, most)
            for other in others:
                for box in file.boxes_of(other.name, other.codes.device):
                    decide_(other, box, cost, turn)
        return self._network(self._packed(others)[0])

    def _started(self, cost: float) -> list[NeighbourWeight]:
        return [
            start(
                site.name, site.latent.detach(), s, self._origins.get(site.name), cost
            )
            for site, s in zip(self._others, self._sensitivity, strict=True)
        ]

    def _packed(
        self, others: list[NeighbourWeight]
    ) -> tuple[dict[str, CompressedTensor], int]:
        """All codes, and the most steps from zero: tensors of as many levels share
        their statistics.
        """
        free = [other for other in others if other.given is None]
        most = max(
            [column.most for column in self._columns]
            + [other.levels.numel() // 2 for other in free],
            default=0,
        )
        for other in free:
            widen_(other, most)
        made = {column.name: column.packed(most) for column in self._columns}
        return made | {other.name: other.packed() for other in others}, most

    def _network(self, made: dict[str, CompressedTensor]) -> CompressedModel:
        """The codes with all else; batch norms follow them."""
        model = copy.deepcopy(self.model)
        parameters = dict(model.named_parameters())
        for name, tensor in made.items():
            parameters[name].copy_(tensor.to_dense())
        follow_(model, self._moments, self.calibration)
        tensors, aliases = tied(model.state_dict(keep_vars=True))
        recipe, known = file_facts(self.model)
        facts = facts_of(model)
        packed = CompressedModel(
            {name: made.get(name, tensor.detach()) for name, tensor in tensors.items()},
            aliases=aliases,
            recipe=recipe,
            metadata={**known, **({METADATA: facts} if facts else {})},
        )
        return coarse_norms(packed, model, NORM_BITS if made else None)
