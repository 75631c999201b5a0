"""Points that papers published, for the planes accuracy–sparsity and accuracy–entropy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tersify.toml import read_toml

# The experiments hold what was published. They are read as data: a report needs nothing
# of the lab's code.
_EXPERIMENTS = Path(__file__).parent.parent / "lab" / "experiments"
_IN_REPORTS = ("ternary-table2",)


@dataclass(frozen=True, kw_only=True)
class Published:
    """Shares and accuracies in percent; a sparsity that the paper gives as a range is
    one here too.
    """

    name: str
    accuracy: float
    sparsity: float | tuple[float, float]
    entropy_bits: float | None = None


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    source: str
    data: str
    points: tuple[Published, ...]


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    return tuple(_table(_EXPERIMENTS / f"{name}.toml") for name in _IN_REPORTS)


def _table(path: Path) -> PublishedTable:
    found = read_toml(path.read_text(encoding="utf-8"), str(path))
    points: dict[Published, str] = {}
    for row in found["rows"]:
        figures = row.get("published", {})
        # several rows of ours may stand beside one of the paper; the first names it
        if "accuracy" in figures:
            points.setdefault(_point("", figures), row["name"])
    named = (_point(name, vars(point)) for point, name in points.items())
    return PublishedTable(
        source=found["source"], data=found["data"], points=tuple(named)
    )


def _point(name: str, figures: Mapping[str, Any]) -> Published:
    zeros = figures.get("sparsity", 0.0)  # a network that nobody pruned has none
    return Published(
        name=name,
        accuracy=figures["accuracy"],
        sparsity=tuple(zeros) if isinstance(zeros, (list, tuple)) else zeros,
        entropy_bits=figures.get("entropy_bits"),
    )
