"""A weight in the forms that the kernels read, and what it is worth to ask before it is
packed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tersify.runtime.gpu import sparse, table4, ternary
from tersify.runtime.weights import Weight, WeightKind, int8_step

TERNARY, TABLE, LISTS = "two-bit", "four-bit", "lists"
MAX_FEATURES = 1 << 16  # whole numbers of more could leave 32 bits
# of a block, on every GPU with the tensor cores that the kernels need, but the smallest
MAX_SHARED_BYTES = 200 << 10
FEW = 0.2  # of weights that are not zero: lists may be shorter than two bits a weight


@dataclass(frozen=True, kw_only=True, eq=False)
class Packed:
    """`data` in one of the forms; the weight is levels (−1, 0 and 1 where there are
    none) times `scale`, one a row.
    """

    form: str
    data: Tensor
    scale: Tensor
    rows: int
    features: int
    starts: Tensor | None = None
    levels: Tensor | None = None

    @property
    def size_bytes(self) -> int:
        return sum(
            t.nbytes
            for t in (self.data, self.scale, self.starts, self.levels)
            if t is not None
        )

    def factors(self) -> Tensor:
        """The reference of all forms: the levels in float64, without the scale."""
        if self.form == LISTS:
            return sparse.unpack(self.lists()).double()
        if self.levels is None:
            return ternary.unpack(self.data, self.rows, self.features).double()
        return self.levels.double()[
            table4.unpack(self.data, self.rows, self.features).long()
        ]

    def dense(self) -> Tensor:
        """The weight itself, in fp32."""
        return self.factors().float() * self.scale[:, None]

    def lists(self) -> sparse.Lists:
        assert self.starts is not None
        return sparse.Lists(
            data=self.data,
            starts=self.starts,
            rows=self.rows,
            features=self.features,
        )


def why_not(weight: Weight) -> str:
    """The reason why no form takes a weight; empty where one does."""
    features = weight.shape[1]
    if features > MAX_FEATURES:
        return f"{features} features are more than the {MAX_FEATURES} that the kernels take"
    if weight.kind is WeightKind.FLOAT or (
        weight.kind is WeightKind.TABLE and len(_all_levels(weight)) > table4.LEVELS
    ):
        return f"its weight has more than {table4.LEVELS} levels"
    return ""


def forms_of(weight: Weight) -> list[str]:
    """The forms that a weight of few levels can have."""
    if weight.kind is not WeightKind.SIGN:
        return [TABLE]
    fits = sparse.shared_bytes(weight.shape[1]) <= MAX_SHARED_BYTES
    return [TERNARY, LISTS] if weight.density < FEW and fits else [TERNARY]


def pack(weight: Weight, form: str) -> Packed:
    """On the device of the weight."""
    rows, features = weight.shape
    device = weight.values.device
    scale = torch.ones(rows) if weight.row_scale is None else weight.row_scale.float()
    scale = scale.to(device).expand(rows).contiguous()
    if form == TABLE:
        levels = _all_levels(weight)
        codes = torch.bucketize(weight.values.contiguous(), levels).to(torch.uint8)
        return Packed(
            form=form,
            data=table4.pack(codes),
            levels=torch.cat([levels, levels.new_zeros(table4.LEVELS - len(levels))]),
            scale=scale,
            rows=rows,
            features=features,
        )
    signs = weight.values.sign().to(torch.int8)
    if form == TERNARY:
        return Packed(
            form=form,
            data=ternary.pack(signs),
            scale=scale,
            rows=rows,
            features=features,
        )
    lists = sparse.pack(signs)
    return Packed(
        form=form,
        data=lists.data,
        starts=lists.starts,
        scale=scale,
        rows=rows,
        features=features,
    )


def in_whole_steps(packed: Packed) -> Packed:
    """Levels as whole numbers of −127..127, as the CPU's kernels for 8-bit activations
    have them.
    """
    if packed.levels is None:
        return packed
    step = int8_step(packed.levels)
    levels = (packed.levels.double() / step).round().float()
    return replace(packed, levels=levels, scale=(packed.scale.double() * step).float())


def _all_levels(weight: Weight) -> Tensor:
    """In order, zero among them."""
    assert weight.table is not None
    table = weight.table.to(weight.values.device)
    return torch.cat([table, table.new_zeros(1)]).unique()
