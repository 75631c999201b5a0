"""Vectors times a packed weight: which launches make a product, for any number of
vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from tersify.runtime.gpu import dense, driver, rounding, sparse, table4, ternary
from tersify.runtime.gpu.launch import Launch, Tiling, ceiling, padded_features
from tersify.runtime.gpu.packed import LISTS, MAX_SHARED_BYTES, TABLE, TERNARY, Packed
from tersify.runtime.gpu.tuning import CLASSES, LIST_TILINGS, class_of, tilings

INT8, BF16_PARTS = "int8", "bf16 parts"
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, BF16_PARTS: torch.bfloat16}
MAX_GRID = 32768  # vectors of one launch of lists
KEPT_SHARED_BYTES = 16 << 10  # for the sums of a block
IN_FLIGHT = 2  # where words cannot come to shared memory
Run = Callable[[Launch], None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a layer's launches are cut: a tiling for each class of vectors, (warps, loads
    in flight) for lists, and the number of vectors from which on the weight is made
    dense for a moment and a library multiplies.
    """

    tilings: tuple[Tiling, ...] = tuple(tilings(most)[0] for most in CLASSES)
    lists: tuple[int, int] = LIST_TILINGS[0]
    dense_from: int = 129

    def flat(self) -> list[int]:
        return [
            *(n for tiling in self.tilings for n in tiling.flat()),
            *self.lists,
            self.dense_from,
        ]

    @staticmethod
    def read(flat: Sequence[int]) -> Settings:
        *numbers, warps, in_flight, dense_from = flat
        found = tuple(
            Tiling.read(numbers[i : i + 4]) for i in range(0, len(numbers), 4)
        )
        return Settings(tilings=found, lists=(warps, in_flight), dense_from=dense_from)

    def tiling(self, vectors: int) -> Tiling:
        return self.tilings[class_of(vectors)]

    def others(self, form: str, vectors: int) -> Iterator[Settings]:
        """All that are worth a measurement for so many vectors."""
        if form == LISTS:
            yield from (replace(self, lists=tiling) for tiling in LIST_TILINGS)
            return
        at = class_of(min(vectors, CLASSES[-1]))
        for tiling in tilings(CLASSES[at]):
            yield replace(
                self, tilings=(*self.tilings[:at], tiling, *self.tilings[at + 1 :])
            )


def table_of(packed: Packed, activations: str) -> Tensor | None:
    """The levels as the kernel of these activations looks them up."""
    if packed.levels is None:
        return None
    if activations == INT8:
        return packed.levels.to(torch.int8)
    return table4.pairs(packed.levels.to(TYPES[activations]))


def product(
    x: Tensor,
    packed: Packed,
    table: Tensor | None,
    bias: Tensor | None,
    activations: str,
    settings: Settings,
    run: Run,
) -> Tensor:
    """[vectors, features] → [vectors, rows], in the type of x."""
    if not len(x):
        return x.new_empty(0, packed.rows)
    if packed.form != LISTS and activations != INT8 and len(x) >= settings.dense_from:
        return _by_library(x, packed, bias, activations, run)
    x = x.contiguous()
    out = torch.empty(len(x), packed.rows, dtype=x.dtype, device=x.device)
    if packed.form == LISTS:
        for first in range(0, len(x), MAX_GRID):
            many = slice(first, first + MAX_GRID)
            _from_lists(x[many], packed, bias, activations, settings, out[many], run)
        return out
    most = CLASSES[-1] // (dense.PARTS if activations == BF16_PARTS else 1)
    for first in range(0, len(x), most):
        few = slice(first, first + most)
        _few_vectors(x[few], packed, table, bias, activations, settings, out[few], run)
    return out


def _few_vectors(
    x: Tensor,
    packed: Packed,
    table: Tensor | None,
    bias: Tensor | None,
    activations: str,
    settings: Settings,
    out: Tensor,
    run: Run,
) -> None:
    """One launch, and what must come before and after it."""
    block = ternary.FEATURES if packed.form == TERNARY else table4.FEATURES
    padded = ceiling(packed.features, block) * block
    room = _shared_bytes_of(x.device)
    inside = activations == INT8 and len(x) == 1 and padded <= room
    tiling = _fitting(settings.tiling(len(x)), packed, room - padded * inside)
    if activations == INT8:
        x = padded_features(x, padded)
        given: Tensor | rounding.Rounded = x
        if not inside:
            given = rounding.empty(len(x), padded, x.device)
            run(rounding.launch(x, given, swapped=packed.form == TERNARY))
        run(_launch(packed, table, given, bias, out, tiling, round_here=inside))
        return
    if activations == BF16_PARTS:
        parts = torch.empty(
            dense.PARTS, len(x), padded, dtype=torch.bfloat16, device=x.device
        )
        run(dense.parts_launch(x, parts))
        sums = torch.empty(
            dense.PARTS * len(x), packed.rows, dtype=torch.float32, device=x.device
        )
        tiling = _fitting(settings.tiling(len(sums)), packed, room)
        run(_launch(packed, table, parts.view(-1, padded), None, sums, tiling))
        run(dense.joined_launch(sums, bias, out))
        return
    run(
        _launch(
            packed,
            table,
            padded_features(x.to(TYPES[activations]), padded),
            bias,
            out,
            tiling,
        )
    )


@cache
def _shared_bytes_of(device: torch.device) -> int:
    """What a block may ask for, beside what every kernel has."""
    if device.type != "cuda":
        return MAX_SHARED_BYTES
    return min(MAX_SHARED_BYTES, driver.shared_bytes(device) - KEPT_SHARED_BYTES)


def _fitting(tiling: Tiling, packed: Packed, room: int) -> Tiling:
    """Words come to shared memory only where they fit."""
    wide = packed.data.shape[1]
    if packed.form == TERNARY:
        needed = ternary.shared_bytes(wide, tiling)
    else:
        needed = table4.TABLE_BYTES + table4.shared_bytes(wide, tiling)
    if needed <= room:
        return tiling
    return replace(tiling, in_flight=tiling.in_flight or IN_FLIGHT)


def _launch(
    packed: Packed,
    table: Tensor | None,
    x: Tensor | rounding.Rounded,
    bias: Tensor | None,
    out: Tensor,
    tiling: Tiling,
    *,
    round_here: bool = False,
) -> Launch:
    if packed.form == TABLE:
        assert table is not None
        return table4.launch(
            packed.data,
            table,
            x,
            packed.scale,
            bias,
            out,
            tiling,
            round_here=round_here,
        )
    return ternary.launch(
        packed.data, x, packed.scale, bias, out, tiling, round_here=round_here
    )


def _from_lists(
    x: Tensor,
    packed: Packed,
    bias: Tensor | None,
    activations: str,
    settings: Settings,
    out: Tensor,
    run: Run,
) -> None:
    lists = packed.lists()
    # sums are in fp32
    numbers = x if activations in (INT8, BF16_PARTS) else x.to(TYPES[activations])
    warps, in_flight = settings.lists
    given = padded_features(numbers, lists.padded)
    run(
        sparse.launch(
            lists,
            given,
            packed.scale,
            bias,
            out,
            warps=warps,
            in_flight=in_flight,
            rounded=activations == INT8,
        )
    )


def _by_library(
    x: Tensor, packed: Packed, bias: Tensor | None, activations: str, run: Run
) -> Tensor:
    dtype = x.dtype if activations == BF16_PARTS else TYPES[activations]
    weight = torch.empty(packed.rows, packed.features, dtype=dtype, device=x.device)
    run(dense.unpack_launch(packed.data, packed.levels, packed.scale, weight))
    made = F.linear(x.to(dtype), weight, None if bias is None else bias.to(dtype))
    return made.to(x.dtype)
