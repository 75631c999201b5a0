"""Codes decided in turns, each by its bits beside its neighbours and by the damage of
its own weight alone.

For weights whose inputs are not known, such as those of recurrent layers and
embeddings, and for codes of a file, which keep their levels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tersify.codec.costs import BoxPrices
from tersify.rate_distortion.columns import MOST_STEPS, STEP_FACTOR
from tersify.tensor import CompressedTensor


@dataclass
class NeighbourWeight:
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


def start(
    name: str,
    values: Tensor,
    sensitivity: Tensor,
    given: CompressedTensor | None,
    cost: float,
) -> NeighbourWeight:
    """The codes that the file has, where they can stay; else the nearest whole steps, as
    wide as the price of a bit makes them.
    """
    if given is not None and keeps_levels(given):
        assert given.codebook is not None
        levels = (
            given.codebook
            if given.scale is None
            else given.codebook * given.scale.reshape(())
        )
        return NeighbourWeight(
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
        torch.cat([torch.arange(steps + 1), torch.arange(-steps, 0)]).to(values) * step
    )
    return NeighbourWeight(name, values, sensitivity, None, codes, levels, step)


def keeps_levels(given: CompressedTensor) -> bool:
    """Whether its codes have one table with a zero, and one scale."""
    if given.codebook is None or given.axis is not None or not _has_one_scale(given):
        return False
    return bool(given.codebook[0] == 0)


def _has_one_scale(given: CompressedTensor) -> bool:
    return given.column_scale is None and (
        given.scale is None or given.scale.numel() == 1
    )


def widen_(weight: NeighbourWeight, steps: int) -> None:
    own = weight.levels.numel() // 2
    assert weight.scale is not None
    # Negative codes lie at the end of the alphabet and move along when it grows.
    weight.codes = torch.where(
        weight.codes > own, weight.codes + 2 * (steps - own), weight.codes
    ).to(torch.uint8)
    whole = torch.cat([torch.arange(steps + 1), torch.arange(-steps, 0)])
    weight.levels = whole.to(weight.values) * weight.scale


def decide_(weight: NeighbourWeight, box: BoxPrices, cost: float, turn: int) -> None:
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
