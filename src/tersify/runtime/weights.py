"""What a weight is to the kernels: signs, entries of a table, or plain values; its zeros always count."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tersify.tensor import CompressedTensor

MAX_TABLE = 256


@dataclass(frozen=True, kw_only=True)
class Weight:
    """The weight is `values` times `row_scale` (one factor an output channel, or None).

    kind "sign": values are −1, 0 and 1. "table": every non-zero value is in `table`. "float": any values.
    """

    kind: str
    values: Tensor
    row_scale: Tensor | None = None
    table: Tensor | None = None

    @property
    def density(self) -> float:
        return int(self.values.count_nonzero()) / max(self.values.numel(), 1)

    @property
    def step(self) -> float:
        """What 127 of make the largest value."""
        return float(self.values.abs().max()) / 127 or 1.0

    def in_steps(self) -> Weight:
        """A table whose levels are whole steps."""
        values = ((self.values.double() / self.step).round() * self.step).float()
        levels = values.unique()
        return replace(self, values=values, table=levels[levels != 0])

    def in_halves(self) -> Weight:
        """The same weight, its values and levels rounded to 16-bit floats."""
        table = None if self.table is None else self.table.half().float()
        return replace(self, values=self.values.half().float(), table=table)

    def describe(self) -> str:
        kind = {"sign": "ternary", "table": f"{0 if self.table is None else len(self.table)} levels"}
        return f"{kind.get(self.kind, 'values')}, {100 * (1 - self.density):.1f} % zeros"


def classify(name: str, weight: Tensor, packed: CompressedTensor | None = None) -> Weight:
    """Find out what a weight is, with the help of its packed form where there is one."""
    if not weight.numel():
        raise ValueError(f"{name!r} of shape {tuple(weight.shape)} holds no weights; compile needs some")
    if not bool(weight.isfinite().all()):
        raise ValueError(f"{name!r} holds NaN or infinite weights; compile needs finite ones")
    dense = weight.detach().to(torch.float32)
    top = dense.abs().reshape(dense.shape[0], -1).amax(1)
    per_row = top.reshape(-1, *[1] * (dense.ndim - 1))
    if bool(((dense == 0) | (dense.abs() == per_row)).all()):
        scale = torch.where(top == 0, 1.0, top)
        return Weight(kind="sign", values=dense.sign(), row_scale=None if bool((scale == 1).all()) else scale)
    if packed is not None and packed.codebook is not None and packed.axis is None:
        scaled = _by_rows(packed)
        if scaled is not None:
            return scaled
    table = dense.unique()
    table = table[table != 0]
    if len(table) <= MAX_TABLE:
        return Weight(kind="table", values=dense, table=table)
    return Weight(kind="float", values=dense)


def _by_rows(packed: CompressedTensor) -> Weight | None:
    """A table with a scale that is constant or has one value a row; None where neither holds."""
    assert packed.codebook is not None
    codebook = packed.codebook.detach().to(torch.float32)
    values = codebook[packed.codes.int()]
    table = codebook.unique()
    table = table[table != 0]
    if packed.scale is None:
        return Weight(kind="table", values=values, table=table)
    scale = packed.scale.detach().to(torch.float32)
    rows = packed.shape[0]
    if scale.numel() == 1:
        return Weight(kind="table", values=values, table=table, row_scale=scale.reshape(1).expand(rows))
    if scale.numel() == rows and scale.ndim == len(packed.shape) and scale.shape[0] == rows:
        return Weight(kind="table", values=values, table=table, row_scale=scale.reshape(rows))
    return None
