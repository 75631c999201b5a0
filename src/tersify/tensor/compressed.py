"""CompressedTensor: a weight as codes with a codebook, or as a mask with its surviving
values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

MAX_LEVELS = 256


@dataclass(frozen=True, eq=False, kw_only=True)
class CompressedTensor:
    """One compressed weight: codes with a codebook, or a mask with the values that
    survived.

    Args:
        shape: of the weight.
        codes: uint8, one for each weight: its level in `codebook`, or the mask (0 or 1) where there is none.
        codebook: the levels, (K,), or (shape[axis], K) with one row for each slice of `axis`.
        values: the survivors in row-major order, for a weight that was pruned and not quantized.
        scale: multiplies the result; broadcasts over `shape`.
        column_scale: multiplies what `scale` made, such as a number for each column where that has one for each row;
            broadcasts over `shape`.
        axis: the axis whose slices have codebooks of their own.
        format: fixed-point facts an exporter needs, whole numbers by name.
    """

    shape: tuple[int, ...]
    codes: Tensor
    codebook: Tensor | None = None
    values: Tensor | None = None
    scale: Tensor | None = None
    axis: int | None = None
    format: Mapping[str, int] = field(default_factory=dict)
    column_scale: Tensor | None = None

    def __post_init__(self) -> None:
        # Plain Python types, so that the file format and equality see one kind.
        object.__setattr__(self, "shape", tuple(map(int, self.shape)))
        object.__setattr__(self, "format", dict(self.format))
        for fact, value in self.format.items():
            if type(value) is not int:
                raise ValueError(f"format holds whole numbers, got {fact!r}: {value!r}")
        # One byte per code everywhere: the file, the kernels and the exports rely on
        # it.
        if self.codes.dtype != torch.uint8:
            raise ValueError(f"codes must be uint8, got {self.codes.dtype}")
        if tuple(self.codes.shape) != self.shape:
            raise ValueError(
                f"codes have shape {tuple(self.codes.shape)}, the tensor has {self.shape}"
            )
        # Exactly one of the two forms.
        if (self.codebook is None) == (self.values is None):
            raise ValueError(
                "give a codebook (quantized) or values (pruned), not both and not neither"
            )
        if self.codebook is not None:
            self._check_codebook(self.codebook)
        elif self.values is not None:
            self._check_values(self.values)
        # One spelling per meaning, so that equal weights are equal objects.
        if self.column_scale is not None and self.scale is None:
            raise ValueError(
                "column_scale multiplies what scale made; give a single one as scale"
            )
        for scale in (self.scale, self.column_scale):
            if scale is not None:
                self._check_scale(scale)

    def _check_codebook(self, codebook: Tensor) -> None:
        # (K,), or (slices, K) where slices have their own levels.
        wanted = 1 if self.axis is None else 2
        if codebook.ndim != wanted:
            raise ValueError(
                f"the codebook must have {wanted} dimension(s) with axis={self.axis}, got {codebook.ndim}"
            )
        if self.axis is not None:
            if not 0 <= self.axis < len(self.shape):
                raise ValueError(
                    f"axis must be 0..{len(self.shape) - 1}, got {self.axis}"
                )
            if codebook.shape[0] != self.shape[self.axis]:
                raise ValueError(
                    f"the codebook has {codebook.shape[0]} rows for {self.shape[self.axis]} slices of axis {self.axis}"
                )
        if not 1 <= codebook.shape[-1] <= MAX_LEVELS:
            raise ValueError(
                f"a codebook has 1..{MAX_LEVELS} levels, got {codebook.shape[-1]}"
            )
        if self.codes.numel() and int(self.codes.max()) >= codebook.shape[-1]:
            raise ValueError(
                f"code {int(self.codes.max())} is outside the codebook of {codebook.shape[-1]} levels"
            )
        # Everything downstream counts and skips code 0 as the zero. A zero elsewhere
        # would make weights silently dense.
        zero = codebook == 0
        if bool((zero.any(-1) & ~zero[..., 0]).any()):
            raise ValueError("where a zero level exists it must be code 0")

    def _check_values(self, values: Tensor) -> None:
        if self.axis is not None:
            raise ValueError("axis belongs to a codebook; a pruned tensor has none")
        if self.codes.numel() and int(self.codes.max()) > 1:
            raise ValueError("the codes of a pruned tensor are a mask of 0 and 1")
        # `values` holds one number for each 1 of the mask, in row-major order.
        survivors = int(self.codes.count_nonzero())
        if values.shape != (survivors,):
            raise ValueError(
                f"the mask keeps {survivors} weights, values have shape {tuple(values.shape)}"
            )

    def _check_scale(self, scale: Tensor) -> None:
        try:
            fits = torch.broadcast_shapes(scale.shape, self.shape) == self.shape
        except RuntimeError:
            fits = False
        if not fits:
            raise ValueError(
                f"a scale of shape {tuple(scale.shape)} does not broadcast over {self.shape}"
            )

    @property
    def levels(self) -> int | None:
        """How many levels the codebook has; None for a pruned tensor."""
        return None if self.codebook is None else int(self.codebook.shape[-1])

    @property
    def dtype(self) -> torch.dtype:
        """Of the codebook, or of the values."""
        source = self.codebook if self.codebook is not None else self.values
        assert source is not None
        return source.dtype

    def numel(self) -> int:
        """How many weights there are, zeros and all."""
        return math.prod(self.shape)

    def to_dense(self) -> Tensor:
        """The weight the network used, in the dtype of the codebook or values."""
        if self.values is not None:
            dense = torch.zeros(
                self.shape, dtype=self.values.dtype, device=self.values.device
            )
            # Fills the kept places in row-major order, the order of `values`.
            dense.masked_scatter_(self.codes.bool(), self.values)
        else:
            assert self.codebook is not None
            if self.axis is None:
                # index_select is several times faster than indexing, and this is most
                # of a load's time
                dense = self.codebook.index_select(
                    0, self.codes.reshape(-1).int()
                ).reshape(self.shape)
            else:
                slices = self.shape[self.axis]
                per_slice = (
                    self.codes.movedim(self.axis, 0)
                    .reshape(slices, self.numel() // max(1, slices))
                    .long()
                )
                moved = (
                    self.shape[self.axis],
                    *self.shape[: self.axis],
                    *self.shape[self.axis + 1 :],
                )
                # As bits: torch's gather passes bfloat16 through floats, where some CPUs
                # change NaN, and knows no shorter ones.
                as_bits = {1: torch.uint8, 2: torch.int16}
                width = self.codebook.dtype.itemsize
                book = self.codebook.view(as_bits.get(width, self.codebook.dtype))
                dense = (
                    book.gather(1, per_slice)
                    .view(self.codebook.dtype)
                    .reshape(moved)
                    .movedim(0, self.axis)
                    .contiguous()
                )
        for scale in (self.scale, self.column_scale):
            dense = dense if scale is None else dense * scale
        return dense

    def equal(self, other: CompressedTensor) -> bool:
        """Whether `other` has the same content bit for bit, field by field."""
        return (
            self.shape == other.shape
            and self.axis == other.axis
            and dict(self.format) == dict(other.format)
            and all(
                same_bits(getattr(self, part), getattr(other, part))
                for part in ("codes", "codebook", "values", "scale", "column_scale")
            )
        )

    def cpu(self) -> CompressedTensor:
        """The same tensor in the CPU's memory."""
        moved: dict[str, Any] = {
            part: t if t is None else t.cpu() for part, t in self._tensors().items()
        }
        return replace(self, **moved)

    def _tensors(self) -> dict[str, Tensor | None]:
        return {
            "codes": self.codes,
            "codebook": self.codebook,
            "values": self.values,
            "scale": self.scale,
            "column_scale": self.column_scale,
        }

    def __repr__(self) -> str:
        kind = "pruned" if self.codebook is None else f"{self.levels} levels"
        return f"CompressedTensor({'×'.join(map(str, self.shape))}, {kind})"


def same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    """Equal in dtype, shape and every bit; −0.0 is not 0.0, and NaN equals itself."""
    if a is None or b is None:
        return a is b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    # As floats −0.0 would equal 0.0, and NaN would not equal itself.
    return torch.equal(_bytes(a), _bytes(b))


def _bytes(t: Tensor) -> Tensor:
    return t.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
