"""A matrix as the decoder's kernels take it: codes of levels with factors of rows and
columns, or plain floats.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tersify.runtime.decode.source import Matrix
from tersify.runtime.weights import Weight, WeightKind, classify, int8_step
from tersify.tensor import CompressedTensor

NIBBLE_LEVELS = 16
SAME = 1e-6  # of the largest level: sums in float32 differ as much


@dataclass(frozen=True, kw_only=True, eq=False)
class Coded:
    """level[code] × factor of its row × factor of its column; `dense` instead where
    there are no few levels.
    """

    dense: Tensor | None = None
    codes: Tensor | None = None  # uint8 [rows, features]
    levels: Tensor | None = None  # float32
    row_scale: Tensor | None = None  # one a row
    column_scale: Tensor | None = None  # one a feature

    @property
    def rows(self) -> int:
        return len(self._numbers)

    @property
    def _numbers(self) -> Tensor:
        found = self.dense if self.codes is None else self.codes
        assert found is not None
        return found

    def level_list(self) -> list[float]:
        return [] if self.levels is None else self.levels.tolist()

    def in_steps(self) -> Coded:
        """The levels as whole numbers of −127..127, which a factor makes what they
        stand for.
        """
        assert self.levels is not None
        # level = whole · step, and the step moves into the factor of every row.
        step = int8_step(self.levels)
        whole = (self.levels.double() / step).round().float()
        scale = (
            torch.full((self.rows,), 1.0) if self.row_scale is None else self.row_scale
        )
        return replace(self, levels=whole, row_scale=(scale.double() * step).float())

    def for_floats(self) -> Coded:
        """More levels than a nibble has are kept as whole steps where they are such, as
        a uniform quantizer's.
        """
        if self.levels is None or len(self.levels) <= NIBBLE_LEVELS:
            return self
        # Whole steps can be stored as bytes and multiplied, without a table. Only
        # levels that are such steps may be replaced: this path is exact.
        steps = self.in_steps()
        assert steps.levels is not None
        step = int8_step(self.levels)
        apart = (steps.levels.double() * step - self.levels.double()).abs().max()
        return steps if bool(apart <= SAME * self.levels.abs().max()) else self


def coded(name: str, matrix: Matrix) -> Coded:
    """From the packed form, where the weight is one or still equals it, or from what
    the numbers are.
    """
    weight, packed = matrix.weight, matrix.origin
    # A file holds the packed form itself; no dense copy is made unless it is of a kind
    # that the kernels do not know.
    if isinstance(weight, CompressedTensor):
        return _of_packed(weight) or _of_weight(classify(name, weight.to_dense()))
    # The live weight may have been trained since it was loaded.
    if packed is not None and _equal(packed, weight):
        return _of_packed(packed) or _of_weight(classify(name, weight))
    return _of_weight(classify(name, weight))


def _equal(packed: CompressedTensor, dense: Tensor) -> bool:
    return packed.shape == tuple(dense.shape) and torch.equal(
        packed.to_dense().float(), dense.float()
    )


def _of_packed(tensor: CompressedTensor) -> Coded | None:
    """None where it is another thing than levels with factors of rows and columns."""
    if tensor.codebook is None or tensor.axis is not None or len(tensor.shape) != 2:
        return None
    rows, features = tensor.shape
    row: Tensor | None = None
    column: Tensor | None = None
    # Each scale is a factor of rows or of columns; several of a kind multiply.
    for scale in (tensor.scale, getattr(tensor, "column_scale", None)):
        if scale is None:
            continue
        factors = scale.detach().float().reshape(-1)
        # A scale for everything is one for each row, all equal.
        if scale.numel() == 1 or tuple(scale.shape) == (rows, 1):
            row = factors.expand(rows) * (1.0 if row is None else row)
        elif tuple(scale.shape) in ((1, features), (features,)):
            column = factors * (1.0 if column is None else column)
        else:
            return None
    return Coded(
        codes=tensor.codes.contiguous(),
        levels=tensor.codebook.detach().float(),
        row_scale=row,
        column_scale=column,
    )


def _of_weight(weight: Weight) -> Coded:
    if weight.kind is WeightKind.FLOAT:
        return Coded(dense=weight.values, row_scale=weight.row_scale)
    if weight.kind is WeightKind.SIGN:
        # 0 for zero, 1 for +1, 2 for −1.
        codes = (
            (weight.values < 0)
            .to(torch.uint8)
            .mul_(2)
            .add_((weight.values > 0).to(torch.uint8))
        )
        return Coded(
            codes=codes,
            levels=torch.tensor([0.0, 1.0, -1.0]),
            row_scale=weight.row_scale,
        )
    assert weight.table is not None
    # Code 0 is the zero; the table holds the other levels.
    levels = torch.cat([torch.zeros(1), weight.table.float()])
    if len(levels) > 256:  # no code is left for zero
        return Coded(dense=weight.values, row_scale=weight.row_scale)
    # Binary search in the sorted levels, then back to the codes.
    order = levels.argsort()
    places = torch.from_numpy(
        np.searchsorted(levels[order].numpy(), weight.values.numpy())
    )
    return Coded(
        codes=order.to(torch.uint8)[places], levels=levels, row_scale=weight.row_scale
    )
