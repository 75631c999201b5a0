"""What a weight is to the kernels: signs, entries of a table, or plain values; its
zeros always count.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from tersify.runtime.extension import extension
from tersify.runtime.row_steps import INT8_HIGH, row_steps
from tersify.tensor import CompressedTensor

MAX_TABLE = 256
SMALL_TABLE = 16  # of levels that kernels look up; more may be steps of each row
# of a row scale: products with activations neither overflow nor vanish
SAFE_EXPONENT = 60
# of the largest level: what a level times a scale may be rounded by
WHOLE_TOLERANCE = 1e-6
# the density from which products with every weight beat lists of some, about
DENSE_FROM = 0.35


class WeightKind(enum.Enum):
    SIGN = "sign"  # only the signs of `values` count
    TABLE = "table"  # every non-zero value is in `table`
    FLOAT = "float"


@dataclass(frozen=True, kw_only=True, eq=False)
class Weight:
    """The weight is `factors` times `row_scale` (one factor an output channel, or
    None).
    """

    kind: WeightKind
    values: Tensor
    row_scale: Tensor | None = None
    table: Tensor | None = None
    # of the parameter, where it is one as it stands: then its packed forms can be
    # shared
    name: str = ""
    nonzeros: int | None = None  # where they were counted
    # the `values` of signs are the factors times `row_scale`, not just of the same sign
    whole: bool = False

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    @property
    def factors(self) -> Tensor:
        """What activations are multiplied with."""
        return self.values.sign() if self.kind is WeightKind.SIGN else self.values

    def product(self, x: Tensor) -> Tensor:
        """`x` times the factors of a matrix, without a copy of it where its rows can be
        scaled afterwards.
        """
        # `values` are the factors themselves here.
        if self.kind is not WeightKind.SIGN or (self.whole and self.row_scale is None):
            return F.linear(x, self.values.to(x.dtype))
        if (
            self.whole
            and self.row_scale is not None
            and bool(self.row_scale.log2().abs().max() <= SAFE_EXPONENT)
        ):
            # values = signs · row_scale, so dividing each output by its scale gives the
            # product with the signs. It saves a copy of the matrix.
            return F.linear(x, self.values.to(x.dtype)) / self.row_scale.to(x.dtype)
        return F.linear(x, self.factors.to(x.dtype))

    def times(self, scale: Tensor | None) -> Tensor:
        """The factors times one number a row. Where that is the weight as it was given,
        nothing is copied.
        """
        if self.kind is not WeightKind.SIGN and scale is None:
            return self.values
        if self.whole and _equal(scale, self.row_scale):
            return self.values
        # In float64, so that the product is rounded once.
        values = self.factors.double()
        if scale is not None:
            values = values * scale.expand(len(values)).reshape(
                -1, *[1] * (values.ndim - 1)
            )
        return values.float()

    @cached_property
    def density(self) -> float:
        counted = (
            int(self.values.count_nonzero()) if self.nonzeros is None else self.nonzeros
        )
        return counted / max(self.values.numel(), 1)

    @property
    def levels(self) -> int:
        """How many different values there are besides zero; 0 for plain ones."""
        if self.kind is WeightKind.SIGN:
            return 2
        return 0 if self.table is None else len(self.table)

    @property
    def table_list(self) -> list[float]:
        return [] if self.table is None else self.table.tolist()

    @cached_property
    def is_whole(self) -> bool:
        """Whether the values are whole numbers of −127..127 times one step."""
        if self.kind is WeightKind.SIGN:
            return True
        if self.kind is WeightKind.FLOAT:
            return False
        whole, step = self.whole_steps()
        apart = (whole.double() * step - self.values.double()).abs().max()
        return bool(apart <= WHOLE_TOLERANCE * self.values.abs().max())

    @cached_property
    def step(self) -> float:
        """Of int8 levels; see `int8_step`."""
        return int8_step(self.factors.unique() if self.table is None else self.table)

    @cached_property
    def int8_noise(self) -> float:
        """The part of a row's energy that rounding to int8 steps takes: the median of
        the rows that have any.
        """
        given = self.factors.reshape(len(self.factors), -1).double()
        rounded = (given / self.step).round() * self.step
        energies = given.square().sum(1)
        lost = (given - rounded).square().sum(1)[energies > 0] / energies[energies > 0]
        return float(lost.median()) if len(lost) else 0.0

    def in_steps(self) -> Weight:
        """The same weight as the int8 kernels have it: the levels of a table rounded to
        whole steps.
        """
        if self.kind is not WeightKind.TABLE:
            return self
        # What the kernel will compute with, so that the reference sees the same
        # rounding. Small levels may round to zero and leave the table.
        values = ((self.values.double() / self.step).round() * self.step).float()
        levels = values.unique()
        return replace(self, values=values, table=levels[levels != 0])

    def whole_steps(self) -> tuple[Tensor, float]:
        """Whole numbers of −127..127, and what one of them stands for."""
        if self.kind is WeightKind.SIGN:
            return self.factors, 1.0
        return (self.values.double() / self.step).round().float(), self.step

    def in_fp16(self) -> Weight:
        """The same weight, its values and levels rounded to 16-bit floats."""
        # Signs are exact in fp16.
        table = None if self.table is None else self.table.half().float()
        values = (
            self.values if self.kind is WeightKind.SIGN else self.values.half().float()
        )
        return replace(self, values=values, table=table)

    def describe(self) -> str:
        kind = {
            WeightKind.SIGN: "ternary",
            WeightKind.TABLE: f"{self.levels} levels",
            WeightKind.FLOAT: "values",
        }
        return f"{kind[self.kind]}, {100 * (1 - self.density):.1f} % zeros"


def int8_step(levels: Tensor) -> float:
    """At most 127 of it up and down: the one whose multiples come nearest to all the
    levels.

    Levels that are whole multiples of something (signs, a uniform quantizer's) are met
    exactly, others within half a step: 0.4 % of the largest where no smaller number of
    steps fits better.
    """
    largest = float(levels.abs().max()) if levels.numel() else 0.0
    if largest == 0.0:
        return 1.0
    # Try every step largest/count. [127, levels]: each level in such steps.
    counts = torch.arange(1, INT8_HIGH + 1, dtype=torch.float64)
    steps = levels.double().cpu().unsqueeze(0) * counts.unsqueeze(1) / largest
    # The worst level's distance from a whole step, in units of the largest level.
    # argmin takes the first of equals, so the coarsest step that is exact.
    apart = (steps - steps.round()).abs().amax(1) / counts
    return largest / int(counts[apart.argmin()])


def _equal(scale: Tensor | None, given: Tensor | None) -> bool:
    if scale is None or given is None:
        return scale is given
    return torch.equal(scale, given.to(scale.dtype))


def classify(
    name: str, weight: Tensor, origin: CompressedTensor | None = None
) -> Weight:
    """Find out what a weight is. Its packed form helps where it still is the same
    weight.
    """
    if not weight.numel():
        raise ValueError(
            f"{name!r} of shape {tuple(weight.shape)} holds no weights; compile needs some"
        )
    dense = weight.detach().to(torch.float32).contiguous()
    found = _classified(dense)
    if found is None:
        raise ValueError(
            f"{name!r} holds NaN or infinite weights; compile needs finite ones"
        )
    # Signs with a scale per row are the cheapest form, whatever the origin says.
    if found.kind is WeightKind.SIGN:
        return found
    by_rows = None if origin is None else _by_rows(origin, dense)
    # A small layer has few different numbers, whatever its steps are.
    if by_rows is None and not 0 < found.levels <= SMALL_TABLE:
        by_rows = _in_row_steps(dense)
    return by_rows or found


def _classified(dense: Tensor) -> Weight | None:
    """By its numbers alone; None where they are not finite. C++ needs one pass where
    torch needs many.
    """
    module = extension()
    if module is None:
        return classified_by_torch(dense)
    # [rows, everything else]: a scale belongs to a row.
    found = module.classify(
        dense.reshape(len(dense), -1).numpy(), MAX_TABLE, torch.get_num_threads()
    )
    if not found.finite:
        return None
    kind = WeightKind[found.kind.name]
    scale = torch.tensor(found.row_scale) if kind is WeightKind.SIGN else None
    return Weight(
        kind=kind,
        values=dense,
        row_scale=None if scale is None or bool((scale == 1).all()) else scale,
        table=torch.tensor(found.table) if kind is WeightKind.TABLE else None,
        nonzeros=found.nonzeros,
        whole=kind is WeightKind.SIGN,
    )


def classified_by_torch(dense: Tensor) -> Weight | None:
    """The same in plain torch: what the C++ is tested against."""
    top = dense.abs().reshape(dense.shape[0], -1).amax(1)
    if not bool(top.isfinite().all()):
        return None
    # Ternary by rows: every weight is 0 or ± the largest of its row.
    per_row = top.reshape(-1, *[1] * (dense.ndim - 1))
    if bool(((dense == 0) | (dense.abs() == per_row)).all()):
        # A row of zeros may have any scale; 1 divides without trouble.
        scale = torch.where(top == 0, 1.0, top)
        row_scale = None if bool((scale == 1).all()) else scale
        return Weight(
            kind=WeightKind.SIGN, values=dense, row_scale=row_scale, whole=True
        )
    table = _few_levels(dense)
    if table is None:
        return Weight(kind=WeightKind.FLOAT, values=dense)
    return Weight(kind=WeightKind.TABLE, values=dense, table=table)


def _few_levels(dense: Tensor) -> Tensor | None:
    """The levels besides zero, or None where there are too many. A sample tells most
    dense weights from others.
    """
    flat = dense.reshape(-1)
    # About a thousand weights already show more values than a table holds, unless the
    # weight was quantized. This spares sorting large dense weights.
    if (
        flat.numel() > 8 * MAX_TABLE
        and len(flat[:: flat.numel() // (4 * MAX_TABLE)].unique()) > MAX_TABLE + 1
    ):
        return None
    table = flat.unique()
    table = table[table != 0]
    return table if len(table) <= MAX_TABLE else None


def _in_row_steps(dense: Tensor) -> Weight | None:
    """Whole numbers of −127..127 times one step a row, as a uniform quantizer of
    channels leaves them; None where some row is none of that.
    """
    rows = dense.reshape(len(dense), -1)
    # Plain numbers show in the first row already.
    if row_steps(rows[:1]) is None:
        return None
    steps = row_steps(rows)
    if steps is None:
        return None
    whole = (rows.double() / steps[:, None]).round().float()
    table = whole.unique()
    return Weight(
        kind=WeightKind.TABLE,
        values=whole.reshape(dense.shape),
        table=table[table != 0],
        row_scale=steps.float(),
    )


def _by_rows(origin: CompressedTensor, dense: Tensor) -> Weight | None:
    """A table with one scale a row, or one for all; None where the origin is no such
    thing, or another weight.
    """
    if (
        origin.codebook is None
        or origin.axis is not None
        or origin.scale is None
        or origin.shape != tuple(dense.shape)
    ):
        return None
    # A scale per row with one codebook makes many distinct values, which no table
    # holds. Seen as codebook times scale it is a small table again.
    scale = origin.scale.detach().to(torch.float32)
    rows = dense.shape[0]
    if origin.column_scale is not None:
        return None  # a table and a scale a row are not all of it
    if scale.numel() == 1:
        row_scale = scale.reshape(1).expand(rows)
    elif scale.numel() == rows and scale.ndim == dense.ndim and scale.shape[0] == rows:
        row_scale = scale.reshape(rows)
    else:
        return None
    # The origin is only a hint: the weight may have been trained since.
    if not torch.equal(origin.to_dense().to(torch.float32), dense):
        return None
    codebook = origin.codebook.detach().to(torch.float32)
    table = codebook.unique()
    values = codebook[origin.codes.int()]
    return Weight(
        kind=WeightKind.TABLE,
        values=values,
        table=table[table != 0],
        row_scale=row_scale,
    )
