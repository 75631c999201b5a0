"""What a kernel launch is: plain data that a driver, or a test, carries out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

S8, F16, BF16, F32 = range(4)  # as in cuda/common.cuh
TYPES = {torch.int8: S8, torch.float16: F16, torch.bfloat16: BF16, torch.float32: F32}

MAX_HELD = 4

Argument = Tensor | int | float | None


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """How a kernel cuts a layer: see cuda/ternary.cu. Nothing `in_flight`: all words
    come to shared memory before the vector is there.
    """

    row_warps: int = 1
    feature_warps: int = 8
    row_blocks: int = 1
    in_flight: int = 4

    @property
    def threads(self) -> int:
        return 32 * self.row_warps * self.feature_warps

    @property
    def rows(self) -> int:
        return 16 * self.row_warps * self.row_blocks

    def flat(self) -> tuple[int, int, int, int]:
        return (self.row_warps, self.feature_warps, self.row_blocks, self.in_flight)

    @staticmethod
    def read(flat: Sequence[int]) -> Tiling:
        row_warps, feature_warps, row_blocks, in_flight = flat
        return Tiling(
            row_warps=row_warps,
            feature_warps=feature_warps,
            row_blocks=row_blocks,
            in_flight=in_flight,
        )

    def defines(self) -> dict[str, int]:
        return {
            "RW": self.row_warps,
            "KW": self.feature_warps,
            "MT": self.row_blocks,
            "UN": self.in_flight,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Launch:
    """One kernel with its arguments. `defines` are the constants it is built with."""

    kernel: str
    files: tuple[str, ...]
    defines: Mapping[str, int]
    grid: tuple[int, int]
    threads: int
    arguments: tuple[Argument, ...]
    shared_bytes: int = 0


def defines_of(
    out: Tensor, given: Tensor, width: int, tiling: Tiling, *, round_here: bool
) -> dict[str, int]:
    """What every kernel for vectors of `width` padded features is built with;
    `round_here`: it rounds the one vector that is given to int8 by itself.
    """
    eights = ceiling(len(out), 8)
    defines = {
        **tiling.defines(),
        "ACT": TYPES[given.dtype],
        "OUT": TYPES[out.dtype],
        "NT": 4 if eights == 3 else eights,
        "ONE": int(len(out) == 1),
        "FUSED": int(round_here),
        "ROUND_FROM": TYPES[given.dtype],
    }
    if round_here:
        defines |= {"ACT": S8, "HOLD": held(width, tiling.threads)}
    return defines


def held(numbers: int, threads: int) -> int:
    """Eights of numbers that each thread of a block keeps in its registers; 0 where
    they are too many.
    """
    count = ceiling(numbers // 8, threads)
    return count if count <= MAX_HELD else 0


def ceiling(count: int, of: int) -> int:
    return -(-count // of)


def padded_features(x: Tensor, features: int) -> Tensor:
    """Vectors one behind the other, with zeros up to `features`."""
    if x.shape[-1] != features:
        x = torch.nn.functional.pad(x, (0, features - x.shape[-1]))
    return x.contiguous()
