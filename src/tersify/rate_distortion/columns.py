"""Codes decided column by column: the columns not yet decided take over what the others
did to the outputs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tersify.codec.costs import BoxPrices
from tersify.compensated.triangular import spread_of
from tersify.rate_distortion.fisher import Fisher
from tersify.tensor import CompressedTensor

MOST_STEPS = 127  # from zero, so that a tensor has at most 255 levels
# What a few hundred samples say of a matrix of hundreds of columns is believed less than
# usual, which 0.01 would be.
DAMPING = 0.1
# A uniform step s does the damage h·s²/12 to a weight of sensitivity h, and a bit less
# quadruples it: with a price p for a bit the best step is √(12 p / (2 ln 2 · h)) where
# codes are many. Here they are few, and √2 wider is better.
STEP_FACTOR = 2 * 6 / math.log(2)
# Steps are powers of √2, which take few bits each in a file.
STEPS_AN_OCTAVE = 2


class ColumnWeight:
    """A weight as whole steps; each row (filter) has a step of its own, wider where its
    output matters less.

    Rows of a group meet the same inputs. All tensors here are (groups, …).
    """

    def __init__(self, name: str, values: Tensor, fisher: Fisher) -> None:
        self.name, self.shape, self._dtype = name, tuple(values.shape), values.dtype
        groups = len(fisher.columns)
        self._values = values.detach().float().reshape(groups, -1, values[0].numel())
        uppers = [spread_of(each, DAMPING).float() for each in fisher.columns]
        self._upper = torch.stack(uppers)
        self._matters = fisher.rows.view(groups, -1)
        self._whole = torch.zeros_like(self._values)
        self._step = torch.ones_like(self._matters)

    @property
    def device(self) -> torch.device:
        return self._values.device

    @property
    def damages(self) -> Tensor:
        """What a squared change of each weight does, later columns making up for it."""
        spread = self._upper.diagonal(dim1=1, dim2=2)
        return self._matters[:, :, None] / spread.square()[:, None]

    def start_(self, cost: float) -> None:
        """The nearest whole steps, as wide as the price of a bit makes them."""
        wanted = (STEP_FACTOR * cost / self.damages.mean(2)).sqrt()
        widest = self._values.abs().amax(2) / (MOST_STEPS - 0.5)
        exponent = wanted.maximum(widest).clamp(min=1e-12).log2() * STEPS_AN_OCTAVE
        # never below the widest: 127 steps must reach the largest weight
        step = torch.exp2(
            torch.where(wanted > widest, exponent.round(), exponent.ceil())
            / STEPS_AN_OCTAVE
        )
        # as the file will hold it
        self._step = step.to(self._dtype).float()
        self._whole = self._nearest(self._values / self._step[:, :, None])

    @staticmethod
    def _nearest(values: Tensor) -> Tensor:
        return values.round().clamp(-MOST_STEPS, MOST_STEPS)

    @property
    def most(self) -> int:
        """The largest number of steps from zero."""
        return int(self._whole.abs().max())

    def packed(self, most: int) -> CompressedTensor:
        """Codes 0, 1, …, most, −most, …, −1: code 0 is zero, as everywhere."""
        whole = torch.cat([torch.arange(most + 1), torch.arange(-most, 0)])
        rows = [-1] + [1] * (len(self.shape) - 1)
        return CompressedTensor(
            shape=self.shape,
            codes=_codes(self._whole, most).to(torch.uint8).reshape(self.shape),
            codebook=whole.to(self._values.device, self._dtype),
            scale=self._step.reshape(rows).to(self._dtype),
        )

    def decide_(self, box: BoxPrices, cost: float, most: int) -> None:
        """Each code becomes the cheapest of the nearest step, the one next to it towards
        zero, and zero, by its bits behind the codes before it and by its damage.
        """
        rest = self._values.clone()
        codes = torch.zeros_like(self._whole, dtype=torch.long)
        spread = self._upper.diagonal(dim1=1, dim2=2)
        prices = _Prices(box, _codes(self._whole, most), 2 * most + 1)
        damage = self._matters * self._step.square()
        for j in range(rest.shape[2]):
            value = rest[:, :, j] / self._step
            near = value.round().clamp(-most, most)
            tried = torch.stack([near, near - near.sign(), torch.zeros_like(near)])
            symbols = _codes(tried, most)
            by_damage = damage / spread[:, j, None].square()
            total = by_damage * (tried - value).square()
            total += cost * prices.of(
                symbols.flatten(1), codes.flatten(0, 1), j
            ).view_as(total)
            best = total.argmin(0, keepdim=True)
            self._whole[:, :, j] = tried.gather(0, best)[0]
            codes[:, :, j] = symbols.gather(0, best)[0]
            error = rest[:, :, j] - self._whole[:, :, j] * self._step
            rest[:, :, j + 1 :] -= (error / spread[:, j, None])[
                :, :, None
            ] * self._upper[:, None, j, j + 1 :]


def _codes(whole: Tensor, most: int) -> Tensor:
    return torch.where(whole < 0, whole + 2 * most + 1, whole).long()


class _Prices:
    """Bits of the codes of one column, (rows,) behind those of the columns before."""

    def __init__(self, box: BoxPrices, codes: Tensor, levels: int) -> None:
        self._box = box
        counts = torch.bincount(codes.flatten(), minlength=levels).clamp(min=0.5)
        self._plain = counts.sum().log2() - counts.log2()

    def of(self, symbols: Tensor, codes: Tensor, column: int) -> Tensor:
        """`symbols` (tried, rows) for that column, `codes` (rows, columns) as far as
        they are decided.
        """
        box = self._box
        # Several codes a symbol: its price is known with its last code only, so a
        # code's own frequency stands for it.
        if box.arity != 1:
            return self._plain[symbols]
        taps = box.box.taps
        unit, row = (column, 0) if taps == 1 else divmod(column, taps)
        missing = torch.full_like(codes[:, 0], -1)
        left = codes[:, column - 1] if row % box.up else missing
        above = codes[:, column - box.up] if row >= box.up else missing
        return box.of_unit(unit, symbols, left, above)
