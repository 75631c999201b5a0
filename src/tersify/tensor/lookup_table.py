"""A lookup table of m-bit words, some of them shifted: the hardware's view of a
codebook (paper 2, section 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tersify.tensor.compressed import CompressedTensor

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TableFormat:
    """n-bit codes for m-bit words with `integer_bits` before the point; internal words
    have k more fraction bits.

    A level is internal where it fits the finer words: below 2^(integer_bits − k) in
    magnitude. Words are two's complement, or (`sign_in_code`, the paper's Table 2)
    magnitudes, with the sign in the code: the lower half of the sorted codes is
    negative, and the bit that a sign would take makes every step half as large.
    """

    n: int
    m: int
    k: int = 0
    integer_bits: int = 0
    sign_in_code: bool = False

    @property
    def levels(self) -> int:
        return int(2**self.n)

    @property
    def fraction(self) -> int:
        """Fraction bits of an external word; an internal one has k more."""
        return self.m - self.integer_bits - (0 if self.sign_in_code else 1)

    @property
    def step(self) -> float:
        """The step between external levels."""
        return float(2.0**-self.fraction)

    @property
    def fine_step(self) -> float:
        """The step between internal levels."""
        return float(2.0 ** -(self.fraction + self.k))

    @property
    def lowest(self) -> int:
        return -(2**self.m - 1) if self.sign_in_code else -(2 ** (self.m - 1))

    @property
    def highest(self) -> int:
        return int(2**self.m - 1 if self.sign_in_code else 2 ** (self.m - 1) - 1)

    def is_internal(self, levels: Floats) -> npt.NDArray[np.bool_]:
        """Levels whose finer word does not overflow."""
        return (levels >= self.lowest * self.fine_step) & (
            levels <= self.highest * self.fine_step
        )

    def round(self, levels: Floats) -> Floats:
        """The nearest representable levels; what lies beyond the largest words goes to
        them.
        """
        # Fine words wherever they fit; all other levels take coarse words.
        near = np.rint(levels / self.fine_step) * self.fine_step
        far = (
            np.clip(np.rint(levels / self.step), self.lowest, self.highest) * self.step
        )
        return np.where(self.is_internal(near), near, far)

    def words(self, levels: Floats) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Each level as a signed integer, and whether it counts in fine steps; both
        exact.
        """
        internal = self.is_internal(levels)
        # Levels must lie exactly on the grid: hardware stores these integers.
        words = levels / np.where(internal, self.fine_step, self.step)
        integers = np.rint(words).astype(np.int64)
        if (
            not np.array_equal(integers, words)
            or integers.min() < self.lowest
            or integers.max() > self.highest
        ):
            raise ValueError(
                f"the levels do not fit {self.m}-bit words with k = {self.k}: {levels.tolist()}"
            )
        return integers, internal

    def grid(self) -> Floats:
        """Every representable level once, ascending."""
        words = np.arange(self.lowest, self.highest + 1)
        return np.union1d(words * self.step, words * self.fine_step)

    def to_mapping(self, **more: int) -> dict[str, int]:
        return {
            "n": self.n,
            "m": self.m,
            "k": self.k,
            "integer_bits": self.integer_bits,
            "sign_in_code": int(self.sign_in_code),
            **more,
        }

    @classmethod
    def of(cls, tensor: CompressedTensor) -> TableFormat:
        """The format a compressed tensor carries."""
        given: Mapping[str, int] = tensor.format
        if tensor.codebook is None or not {
            "n",
            "m",
            "k",
            "integer_bits",
            "sign_in_code",
        } <= set(given):
            raise ValueError(
                f"{tensor} is no lookup table; compress the weight with the method 'lookup'"
            )
        return cls(
            n=given["n"],
            m=given["m"],
            k=given["k"],
            integer_bits=given["integer_bits"],
            sign_in_code=bool(given["sign_in_code"]),
        )


@dataclass(frozen=True, eq=False)
class Table:
    """A compressed tensor as hardware stores it: codes in ascending order of their
    levels, integer words, shifts.

    `words` and `internal` are (tables, 2^n), one table for the tensor or one for each
    slice of its axis 0.
    """

    format: TableFormat
    codes: npt.NDArray[np.uint8]
    words: Ints
    internal: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, tensor: CompressedTensor) -> Table:
        form = TableFormat.of(tensor)
        assert tensor.codebook is not None
        if tensor.axis not in (None, 0):
            raise ValueError(f"tables lie along axis 0, got axis {tensor.axis}")
        levels = (
            tensor.codebook.detach()
            .cpu()
            .double()
            .numpy()
            .reshape(-1, tensor.codebook.shape[-1])
        )
        # A codebook of fewer than 2^n levels repeats its last one, so that every n-bit
        # code has a word.
        levels = np.pad(
            levels, ((0, 0), (0, form.levels - levels.shape[1])), mode="edge"
        )
        # `order` sorts the levels, `rank` is its inverse: the place of each old code
        # among the sorted levels.
        order = np.argsort(levels, axis=1, kind="stable")
        rank = np.argsort(order, axis=1, kind="stable").astype(np.uint8)
        codes = tensor.codes.cpu().numpy()
        table_of_row = (
            np.zeros(len(codes), np.int64)
            if len(levels) == 1
            else np.arange(len(codes))
        )
        # [rows, 1, …] beside codes of the tensor's shape: each row in its own table.
        hardware = rank[table_of_row.reshape(-1, *[1] * (codes.ndim - 1)), codes]
        words, internal = form.words(np.take_along_axis(levels, order, axis=1))
        return cls(form, hardware, words, internal)

    def fine_words(self) -> Ints:
        """Every level in fine steps: the word itself, or an external word moved up by k
        bits.
        """
        return np.where(self.internal, self.words, self.words << self.format.k)

    def code_bytes(self) -> int:
        """The packed codes."""
        return (self.codes.size * self.format.n + 7) // 8

    @property
    def is_identity(self) -> bool:
        """The codes are the words (plain fixed point): hardware needs no table."""
        form = self.format
        return (
            form.n == form.m
            and not form.sign_in_code
            and bool((np.diff(self.words, axis=1) == 1).all())
        )

    def table_bytes(self) -> int:
        """The words, and one bit for each that says whether it is internal, unless all
        are.
        """
        if self.is_identity:
            return 0
        # The extra bit says whether a word is shifted.
        bits = self.format.m + (0 if self.format.k == 0 or self.internal.all() else 1)
        return (self.words.size * bits + 7) // 8
