"""A scale for every group of columns of a row."""

from __future__ import annotations

import torch
from torch import Tensor

from tersify.compensated.tables import Table
from tersify.tensor import CompressedTensor


class Grouped:
    """Codes of a table whose scale is that of a row's group of columns.

    Levels are fitted to the matrix as it was, every group of a row by itself. The scale
    of a group is chosen when the group begins, on what the columns before it left there
    (GPTQ's groups): `compensate` must call `block` for one group at a time.

    Args:
        code: the table; its rows are the groups of all rows, one behind the other.
        size: columns of a group, which divide those of the matrix.
    """

    def __init__(self, code: Table, size: int) -> None:
        self.code, self.size = code, size
        self._matters = self._start = torch.empty(0)
        self._scales: list[Tensor] = []

    def begin(self, weight: Tensor, spread: Tensor) -> None:
        self._matters = spread.reciprocal().square()
        every = self._matters.expand_as(weight)
        self.code.fit(weight.reshape(-1, self.size), every.reshape(-1, self.size))
        self._start = self.code.scale.view(len(weight), -1)
        self.code.make_room(weight)

    def block(self, weight: Tensor, spread: Tensor, columns: slice) -> None:
        self.code.scale = self._start[:, columns.start // self.size]
        self.code.fit_rows(weight[:, columns], self._matters[columns])
        self._scales.append(self.code.scale)

    def column(self, values: Tensor, index: int) -> Tensor:
        return self.code.column(values, index)

    def packed(self) -> CompressedTensor:
        """Rows × groups × columns of a group, as `tersify.tensor.blocks` joins them."""
        codes = self.code.codes.unflatten(1, (-1, self.size))
        return CompressedTensor(
            shape=tuple(codes.shape),
            codes=codes,
            codebook=self.code.levels,
            scale=torch.stack(self._scales, 1)[:, :, None],
        )
