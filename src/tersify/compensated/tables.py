"""Codes of few levels for each matrix: a table of levels, or three of them, with a
scale for each row.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tersify.methods.lookup.optimal import Moments, optimal_table
from tersify.tensor import CompressedTensor
from tersify.tensor.lookup_table import TableFormat

# levels of a table are whole numbers of so many bits, times the row's scale
WORD_BITS = 8
TERNARY_ROUNDS = 8
SCALE_TRIES = 24


def short(scale: Tensor) -> Tensor:
    """Numbers of eight significant bits: the rest would double what scales take in the
    file, and tells nothing.
    """
    return scale.to(torch.bfloat16).float()


class Table:
    """The nearest of 2^bits levels, with a scale for each row.

    The levels are the best there are for the matrix as it was: a column counts by
    1/U_jj², the damage of its errors, and a row by its Fisher information.
    """

    def __init__(self, bits: int, fisher: Tensor) -> None:
        self.bits, self._fisher = bits, fisher
        self.scale = self.levels = torch.empty(0)
        self._codes = torch.empty(0, dtype=torch.uint8)

    def begin(self, weight: Tensor, spread: Tensor) -> None:
        self.fit(weight, spread.reciprocal().square())
        self.make_room(weight)

    def make_room(self, weight: Tensor) -> None:
        self._codes = torch.empty(
            weight.shape[1], weight.shape[0], dtype=torch.uint8, device=weight.device
        )

    def fit(self, weight: Tensor, matters: Tensor) -> None:
        """Levels for all rows, and a scale for each; `matters` broadcasts over them."""
        top = weight.abs().amax(1).clamp(min=1e-12)
        self.scale = top / (2 ** (WORD_BITS - 1) - 1)
        self.levels = self._fitted(weight, matters)
        for _ in range(2):
            self._fit_scale(weight, matters)
            self.levels = self._fitted(weight, matters)
        self.scale = short(self.scale)

    def fit_rows(self, weight: Tensor, matters: Tensor) -> None:
        """The scales anew, with the levels that there are."""
        self._fit_scale(weight, matters)
        self.scale = short(self.scale)

    def _fitted(self, weight: Tensor, matters: Tensor) -> Tensor:
        """The best levels of the scaled matrix: exact, on the grid of the words."""
        scaled = (weight / self.scale[:, None]).double().cpu().numpy().ravel()
        counted = (
            (matters * (self._fisher * self.scale.square())[:, None])
            .double()
            .cpu()
            .numpy()
            .ravel()
        )
        form = TableFormat(n=self.bits, m=WORD_BITS, integer_bits=WORD_BITS - 1)
        reach = float(2 ** (WORD_BITS - 1))
        moments = Moments(scaled, counted / counted.mean(), form.step / 2, reach)
        _, levels = optimal_table(
            [moments], form, range(1), ratio=None, force_zero=True
        )
        whole = np.unique(levels[0])
        return (
            torch.from_numpy(np.concatenate([[0.0], whole[whole != 0]]))
            .float()
            .to(weight.device)
        )

    def _fit_scale(self, weight: Tensor, matters: Tensor) -> None:
        """For each row the scale, of some around what it has, at which its rounding
        does least damage.
        """
        best = torch.full_like(self.scale, torch.inf)
        chosen = self.scale.clone()
        for factor in torch.linspace(0.5, 1.15, SCALE_TRIES):
            scale = self.scale * factor
            near = self._nearest(weight / scale[:, None]) * scale[:, None]
            damage = ((weight - near).square() * matters).sum(1)
            better = damage < best
            best, chosen = (
                torch.where(better, damage, best),
                torch.where(better, scale, chosen),
            )
        self.scale = chosen

    def _codes_of(self, values: Tensor) -> Tensor:
        order = self.levels.argsort()
        ascending = self.levels[order]
        between = (ascending[1:] + ascending[:-1]) / 2
        # A turned weight lies column by column, of which torch would warn.
        return order[torch.bucketize(values.contiguous(), between)]

    def _nearest(self, values: Tensor) -> Tensor:
        return self.levels[self._codes_of(values)]

    def block(self, weight: Tensor, spread: Tensor, columns: slice) -> None:
        pass

    def column(self, values: Tensor, index: int) -> Tensor:
        codes = self._codes_of(values / self.scale)
        self._codes[index] = codes.to(torch.uint8)
        return self.levels[codes] * self.scale

    def packed(self) -> CompressedTensor:
        codes = self.codes
        return CompressedTensor(
            shape=tuple(codes.shape),
            codes=codes,
            codebook=self.levels,
            scale=self.scale[:, None],
        )

    @property
    def codes(self) -> Tensor:
        """Rows × columns."""
        return self._codes.T.contiguous()


class Ternary(Table):
    """−, 0 and + a scale for each row, the one at which its rounding does least damage
    (TWN, eq. 3, with weights).
    """

    def __init__(self) -> None:
        super().__init__(1, torch.empty(0))

    def fit(self, weight: Tensor, matters: Tensor) -> None:
        self.levels = torch.tensor([0.0, -1.0, 1.0], device=weight.device)
        self.fit_rows(weight, matters)

    def fit_rows(self, weight: Tensor, matters: Tensor) -> None:
        self.scale = weight.abs().mean(1).clamp(min=1e-12)
        for _ in range(TERNARY_ROUNDS):
            kept = (weight.abs() > self.scale[:, None] / 2) * matters
            self.scale = (
                (weight.abs() * kept).sum(1) / kept.sum(1).clamp(min=1e-30)
            ).clamp(min=1e-12)
        self.scale = short(self.scale)


class Pruned:
    """Zeros where they do least damage, block of columns by block of columns; the
    others stay (SparseGPT).

    Args:
        sparsity: the fraction of zeros in each block of columns.
    """

    def __init__(self, sparsity: float) -> None:
        self.sparsity = sparsity
        self._kept = torch.empty(0, dtype=torch.bool)
        self._weight = torch.empty(0)

    def begin(self, weight: Tensor, spread: Tensor) -> None:
        self._kept = torch.ones(
            weight.shape[1], weight.shape[0], dtype=torch.bool, device=weight.device
        )
        self._weight = torch.empty(
            weight.shape[1], weight.shape[0], device=weight.device
        )

    def block(self, weight: Tensor, spread: Tensor, columns: slice) -> None:
        damage = (weight[:, columns] / spread[columns]).square()
        gone = round(self.sparsity * damage.numel())
        if gone:
            limit = damage.flatten().kthvalue(gone).values
            self._kept[columns] = (damage > limit).T

    def column(self, values: Tensor, index: int) -> Tensor:
        made = torch.where(self._kept[index], values, 0.0)
        self._weight[index] = made
        return made

    def packed(self) -> CompressedTensor:
        dense = self._weight.T.contiguous()
        kept = dense != 0
        return CompressedTensor(
            shape=tuple(dense.shape), codes=kept.to(torch.uint8), values=dense[kept]
        )
