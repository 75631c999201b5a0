"""The settings of a compression that compensates, checked at birth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from tersify.checks import check_choice, check_range

CODES = ("steps", "table", "ternary", "prune")
TABLE_BITS = (2.0, 3.0, 4.0, 5.0, 6.0)


@dataclass(frozen=True, kw_only=True)
class Compensation:
    """What the matrices of a network become.

    Args:
        code: "steps" (whole steps, coded by their entropy), "table" (2^bits levels and a scale a row), "ternary"
            or "prune" (zeros, the others as they are).
        bits: of a weight in the file, a mean over all matrices, for steps; the size of a table for "table".
        dead_zone: how much more than half a step a weight must have to be no zero, for steps.
        sparsity: the share of zeros, for "prune".
        damping: what is added to the Hessian's diagonal, as a share of its mean.
        embeddings: whether embeddings, and heads tied to them, are compressed too.
    """

    code: str = "steps"
    bits: float = 3.0
    dead_zone: float = 0.1
    sparsity: float = 0.5
    damping: float = 0.001
    embeddings: bool = True

    def __post_init__(self) -> None:
        check_choice("code", self.code, CODES)
        check_range("bits", self.bits, low=0.5, high=8.0)
        if self.code == "table" and self.bits not in TABLE_BITS:
            raise ValueError(
                f"bits of a table must be one of 2, 3, 4, 5, 6, got {self.bits}"
            )
        check_range("dead_zone", self.dead_zone, low=0.0, high=0.5)
        check_range("sparsity", self.sparsity, low=0.0, high=1.0, high_open=True)
        check_range("damping", self.damping, low=1e-6, high=1.0)
        if not isinstance(self.embeddings, bool):
            raise ValueError(
                f"embeddings must be true or false, got {self.embeddings!r}"
            )

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Compensation:
        """From the table of a TOML file."""
        known = [field.name for field in fields(cls)]
        for key in table:
            check_choice("a setting of [compensation]", key, known)
        return cls(**table)

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)
