"""What a session adds to a training step that is bound by its host, method by method."""

from __future__ import annotations

from tables import read


def host_bound() -> str:
    """The factor of each method over the plain step, the smallest first."""
    figures = read("host-bound")["figures"]
    factors = {
        name.removeprefix("host_bound_").removesuffix("_factor"): factor
        for name, factor in figures.items()
        if name.endswith("_factor")
    }
    lines = [
        "| method | step, plain = 1 | torch calls added |",
        "|---|---|---|",
    ]
    for method, factor in sorted(factors.items(), key=lambda item: item[1]):
        added = figures[f"host_bound_{method}_calls_added"]
        lines.append(f"| `{method}` | {factor:.2f} | {added:.0f} |")
    return "\n".join(lines)


TABLES = {"host-bound": host_bound}
