"""The settings of a compression that compensates, checked at birth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from tersify.checks import check_choice, check_range, check_whole

CODES = ("steps", "table", "ternary", "prune")
LEAST_BITS, MOST_BITS = 0.5, 8.0
TABLE_BITS = (2.0, 3.0, 4.0, 5.0, 6.0)


@dataclass(frozen=True, kw_only=True)
class Compensation:
    """What the matrices of a network become.

    Args:
        code: "steps" (whole steps, coded by their entropy), "table" (2^bits levels and a scale a row), "ternary"
            or "prune" (zeros, the others as they are).
        bits: of a weight in the file, a mean over all matrices, for steps; the size of a table for "table".
        coded_bits: of a weight in the file, a mean over all matrices, for "table": a price on the bits of codes chooses
            the levels, and rows and columns have steps; 0 for a table that ignores them.
        groups: columns of a row that share a scale, for "ternary" and for "table" without coded_bits; 0 for one scale a
            row, which a matrix also gets whose columns are no multiple of it.
        dead_zone: how much more than half a step a weight must have to be no zero, for steps.
        levels: the most that a matrix has, an odd number, for steps; 15 makes codes of 4 bits.
        sparsity: the fraction of zeros, for "prune".
        damping: what is added to the Hessian's diagonal, as a fraction of its mean.
        embeddings: whether embeddings, and heads tied to them, are compressed too.
        tune_steps: batches by which scales and norms learn the outputs of the network as it was; 0 for none.
        tune_rate: the most that a scale changes in one of these steps, as a fraction of it.
        tune_codes: whether the codes learn too, for steps and for tables with coded_bits.
    """

    code: str = "steps"
    bits: float = 3.0
    coded_bits: float = 0.0
    groups: int = 0
    dead_zone: float = 0.1
    levels: int = 255
    sparsity: float = 0.5
    damping: float = 0.001
    embeddings: bool = True
    tune_steps: int = 0
    tune_rate: float = 0.002
    tune_codes: bool = False

    def __post_init__(self) -> None:
        check_choice("code", self.code, CODES)
        check_range("bits", self.bits, low=LEAST_BITS, high=MOST_BITS)
        if self.code == "table" and self.bits not in TABLE_BITS:
            raise ValueError(
                f"bits of a table must be one of 2, 3, 4, 5, 6, got {self.bits}"
            )
        check_range("coded_bits", self.coded_bits, low=0.0, high=8.0)
        if self.coded_bits and self.code != "table":
            raise ValueError(
                f"coded_bits is for code table, got {self.code!r}; steps have bits"
            )
        check_whole("groups", self.groups, low=0)
        if self.groups and (self.code not in ("table", "ternary") or self.file_bits):
            raise ValueError(
                "groups is for code ternary and for tables without coded_bits; steps have a scale for each column"
            )
        check_range("dead_zone", self.dead_zone, low=0.0, high=0.5)
        check_whole("levels", self.levels, low=3, high=255)
        if self.levels % 2 == 0:
            raise ValueError(
                f"levels must be odd, zero and as many on either side, got {self.levels}"
            )
        check_range("sparsity", self.sparsity, low=0.0, high=1.0, high_open=True)
        check_range("damping", self.damping, low=1e-6, high=1.0)
        check_whole("tune_steps", self.tune_steps, low=0)
        check_range("tune_rate", self.tune_rate, low=0.0, high=0.1, low_open=True)
        for name in ("embeddings", "tune_codes"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(
                    f"{name} must be true or false, got {getattr(self, name)!r}"
                )
        if self.tune_codes and not self.file_bits:
            raise ValueError(
                f"tune_codes is for code steps and for tables with coded_bits, got {self.code!r}; leave it out"
            )

    @property
    def most_steps(self) -> int:
        """Of a weight, either way from zero."""
        return self.levels // 2

    @property
    def file_bits(self) -> float:
        """Of a weight in the file, where that is asked for; else 0."""
        return self.bits if self.code == "steps" else self.coded_bits

    def with_file_bits(self, bits: float) -> Compensation:
        """The same, with so many bits of a weight in the file."""
        if self.code == "steps":
            return replace(self, bits=bits)
        return replace(self, coded_bits=bits)

    @property
    def table_levels(self) -> int:
        return int(2**self.bits)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Compensation:
        """From the table of a TOML file."""
        known = [field.name for field in fields(cls)]
        for key in table:
            check_choice("a setting of [compensation]", key, known)
        return cls(**table)

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)
