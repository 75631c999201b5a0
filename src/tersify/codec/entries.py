"""One tensor of a file: its parts, and the groups that they lie in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from tersify.codec.layout import Box, box_of, flat_box
from tersify.codec.views import Same

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# the group of a codebook that needs none: codes 0, 1, … stand for 0, 1, …, and those of
# the upper half for …, −2, −1
WHOLE = -1
# the letter of its kind
PARTS = {
    "dense": "d",
    "codebook": "b",
    "values": "v",
    "scale": "m",
    "column_scale": "w",
}


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A dense array: its shape, the dtype on disk, the dtype it is given back in, its
    first group.
    """

    shape: tuple[int, ...]
    dtype: str
    given: str
    group: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def box(self) -> Box:
        return flat_box(self.elements)

    @property
    def given_bytes(self) -> int:
        return self.elements * DTYPES[self.given].itemsize

    def whole_numbers(self) -> torch.Tensor:
        """The levels of a codebook of the group `WHOLE`."""
        return whole_levels(self.elements).to(DTYPES[self.given])


def whole_levels(count: int) -> torch.Tensor:
    """0, 1, …, −2, −1: `count` levels, the largest being half of them."""
    levels = torch.arange(count)
    return torch.where(levels > count // 2, levels - count, levels)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One tensor: dense (`dense` alone), codes with a codebook or with values, or the
    content of another (`same` alone).
    """

    name: str
    shape: tuple[int, ...]
    same: Same | None = None
    dense: Stored | None = None
    code_group: int = 0
    codebook: Stored | None = None
    values: Stored | None = None
    scale: Stored | None = None
    column_scale: Stored | None = None
    axis: int | None = None
    format: Mapping[str, int] = field(default_factory=dict)

    @property
    def levels(self) -> int:
        """Size of the alphabet of the codes."""
        return 2 if self.codebook is None else self.codebook.shape[-1]

    @property
    def box(self) -> Box:
        return box_of(self.shape)

    def parts(self) -> dict[str, Stored]:
        """The stored arrays by the name of the field that holds them."""
        return {
            part: stored
            for part in PARTS
            if (stored := getattr(self, part)) is not None and stored.group != WHOLE
        }

    @property
    def has_whole_levels(self) -> bool:
        return self.codebook is not None and self.codebook.group == WHOLE

    @property
    def view_bytes(self) -> int:
        """What a tensor with this content in another shape may take: codes, and dense
        numbers on the way to them or instead.
        """
        parts = (self.dense, self.codebook, self.values, self.scale, self.column_scale)
        width = max(DTYPES[part.given].itemsize for part in parts if part is not None)
        return 2 * self.decoded_bytes + math.prod(self.shape) * width

    @property
    def decoded_bytes(self) -> int:
        codes = 0 if self.dense is not None else math.prod(self.shape)
        levels = self.levels * 8 if self.has_whole_levels else 0
        return (
            codes + levels + sum(stored.given_bytes for stored in self.parts().values())
        )


def kind_of(part: str, name: str) -> str:
    """Arrays of one kind lie together in their group: the part's letter and the end of
    the dotted name.
    """
    return PARTS[part] + name.rpartition(".")[2]
