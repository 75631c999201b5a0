"""Rate and distortion after training: every code is decided by its bits and by the
damage it does.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tersify.batchnorm_statistics import recalibrate_
from tersify.calibration import Calibration, squared_gradients
from tersify.codec.costs import BoxPrices, priced
from tersify.norms_in_few_bits import coarse_norms
from tersify.recipe.reached_weights import reached_by
from tersify.sites import find_sites
from tersify.tensor import CompressedModel, CompressedTensor
from tersify.tensor.inputs import METADATA, facts_of
from tersify.tensor.model import tied
from tersify.tensor.origin import file_facts, origins_of

ROUNDS = 4
MOST_STEPS = 127  # from zero, so that a tensor has at most 255 levels
NORM_BITS = 8
# A uniform step s does the damage h·s²/12 to a weight of sensitivity h, and a bit less
# quadruples it: with a price p for a bit the best step is √(12 p / (2 ln 2 · h)).
STEP_FACTOR = 8.656


@dataclass
class _Weight:
    """One tensor: its numbers, how much each matters, and the levels that its codes
    stand for.
    """

    name: str
    values: Tensor
    sensitivity: Tensor
    given: CompressedTensor | None  # as the file holds it
    codes: Tensor
    levels: Tensor  # of the codes, the scale included; level 0 is zero
    scale: Tensor | None = None

    def packed(self) -> CompressedTensor:
        if self.given is not None:
            return CompressedTensor(
                shape=self.given.shape,
                codes=self.codes,
                codebook=self.given.codebook,
                scale=self.given.scale,
                axis=self.given.axis,
                format=self.given.format,
                column_scale=self.given.column_scale,
            )
        steps = self.levels.numel() // 2
        whole = torch.cat([torch.arange(steps + 1), torch.arange(-steps, 0)]).to(
            self.values.dtype
        )
        return CompressedTensor(
            shape=tuple(self.codes.shape),
            codes=self.codes,
            codebook=whole,
            scale=self.scale,
        )


class Squeezer:
    """A trained network and a little data; `at` gives it in as few bytes as a price for
    each bit allows.

    The damage of a code is the squared change of its weight times the mean squared
    gradient of the loss there, half of it the weight's own and half its layer's mean.
    Weights that the file holds as codes keep their levels; others get levels a step
    apart, wider in layers that matter less. Batch norms are measured anew, and saved in
    few bits like biases.
    """

    def __init__(
        self, model: nn.Module, calibration: Calibration | Iterable[tuple[Any, Any]]
    ) -> None:
        self.model, self.calibration = model, Calibration.of(calibration)
        self._sites = reached_by("*", find_sites(model))
        own = squared_gradients(model, self._sites, self.calibration)
        # Half of the layer's mean: gradients of a few batches are noisy, and a weight
        # without any would be free to vanish.
        self._sensitivity = [(each + each.mean()) / 2 for each in own]
        self._origins = origins_of(model)
        moved = [
            (s * site.latent.detach().square()).sum()
            for s, site in zip(self._sensitivity, self._sites, strict=True)
        ]
        count = sum(site.latent.numel() for site in self._sites)
        # The mean of h·w², the damage of a zero, makes `price` a number without units
        # that fits every network.
        self._unit = max(float(torch.stack(moved).sum()) / count, 1e-30)

    @torch.no_grad()
    def at(self, price: float) -> CompressedModel:
        """The network where a bit is worth `price` times the mean damage of putting a
        weight to zero.
        """
        cost = price * self._unit
        weights = [
            self._start(site.name, site.latent, s, cost)
            for site, s in zip(self._sites, self._sensitivity, strict=True)
        ]
        most = max(
            (w.levels.numel() // 2 for w in weights if w.given is None), default=0
        )
        for weight in weights:
            if weight.given is None:
                # tensors of as many levels share their statistics
                _widen_(weight, most)
        # Each round prices the codes that the last one left, since tables follow the
        # codes.
        for turn in range(ROUNDS):
            file = priced({weight.name: weight.packed() for weight in weights})
            for weight in weights:
                for box in file.boxes_of(weight.name, weight.codes.device):
                    _decide_(weight, box, cost, turn)
        return self._network(weights)

    def _start(
        self, name: str, latent: Tensor, sensitivity: Tensor, cost: float
    ) -> _Weight:
        values = latent.detach()
        given = self._origins.get(name)
        if (
            given is not None
            and given.codebook is not None
            and given.axis is None
            and _has_one_scale(given)
        ):
            levels = (
                given.codebook
                if given.scale is None
                else given.codebook * given.scale.reshape(())
            )
            if levels[0] == 0:
                return _Weight(
                    name, values, sensitivity, given, given.codes.clone(), levels
                )
        # The best uniform step for this price; see STEP_FACTOR.
        step = (STEP_FACTOR * cost / sensitivity.mean().clamp(min=1e-30)).sqrt()
        step = step.maximum(values.abs().max() / MOST_STEPS).clamp(min=1e-12)
        whole = (values / step).round()
        steps = int(whole.abs().max())
        # Codes 0, 1, …, steps, −steps, …, −1: code 0 is zero, as everywhere.
        codes = torch.where(whole < 0, whole + 2 * steps + 1, whole).to(torch.uint8)
        levels = (
            torch.cat([torch.arange(steps + 1), torch.arange(-steps, 0)]).to(values)
            * step
        )
        return _Weight(name, values, sensitivity, None, codes, levels, step)

    def _network(self, weights: list[_Weight]) -> CompressedModel:
        """The codes with all else, batch norms measured with them in their places."""
        model = copy.deepcopy(self.model)
        made = {weight.name: weight.packed() for weight in weights}
        parameters = dict(model.named_parameters())
        for name, tensor in made.items():
            parameters[name].copy_(tensor.to_dense())
        recalibrate_(model, self.calibration)
        tensors, aliases = tied(model.state_dict(keep_vars=True))
        recipe, known = file_facts(self.model)
        facts = facts_of(model)
        packed = CompressedModel(
            {name: made.get(name, tensor.detach()) for name, tensor in tensors.items()},
            aliases=aliases,
            recipe=recipe,
            metadata={**known, **({METADATA: facts} if facts else {})},
        )
        return coarse_norms(packed, model, NORM_BITS)


def _has_one_scale(given: CompressedTensor) -> bool:
    return given.column_scale is None and (
        given.scale is None or given.scale.numel() == 1
    )


def _widen_(weight: _Weight, steps: int) -> None:
    own = weight.levels.numel() // 2
    assert weight.scale is not None
    # Negative codes lie at the end of the alphabet and move along when it grows.
    weight.codes = torch.where(
        weight.codes > own, weight.codes + 2 * (steps - own), weight.codes
    ).to(torch.uint8)
    whole = torch.cat([torch.arange(steps + 1), torch.arange(-steps, 0)])
    weight.levels = whole.to(weight.values) * weight.scale


def _decide_(weight: _Weight, box: BoxPrices, cost: float, turn: int) -> None:
    """Each second code becomes the cheapest of: itself, the level next to it towards
    zero or away from it, and zero.

    Codes next to each other are contexts of each other, so they are decided in turns.
    """
    part = slice(box.begin, box.begin + box.box.elements)
    codes = weight.codes.view(-1)[part]
    values, matters = (
        weight.values.reshape(-1)[part],
        weight.sensitivity.reshape(-1)[part],
    )
    # Codes are not in the order of their levels; ranks are, so that rank ± 1 is the
    # next level.
    order = weight.levels.argsort()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    zero, at = rank[0], rank[codes.long()]
    # One level nearer to zero.
    down = at - (at - zero).sign()
    # The neighbour on the side of the true value.
    towards = (values - weight.levels[codes.long()]).sign().long()
    near = (at + towards).clamp(0, len(order) - 1)
    best, least = codes, matters * (values - weight.levels[codes.long()]).square()
    for place in (down, near, torch.full_like(at, int(zero))):
        other = order[place].to(torch.uint8)
        total = matters * (
            values - weight.levels[other.long()]
        ).square() + cost * box.change(codes, other)
        best, least = (
            torch.where(total < least, other, best),
            torch.minimum(total, least),
        )
    # Odd and even codes in turn: prices hold only while the neighbours stay.
    mine = (torch.arange(len(codes), device=codes.device) + turn) % 2 == 0
    weight.codes.view(-1)[part] = torch.where(mine, best, codes)
