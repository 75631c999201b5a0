"""Tables of the architectures that are compiled and compared with torch."""

from __future__ import annotations

from typing import Any

from tables import read

WEIGHTS = ("dense", "pruned", "ternary")
BATCHES = (1, 5)
SUMMARY = {
    "architectures": ("architectures", "{:.0f}"),
    "cases": ("cases (architecture × weights)", "{:.0f}"),
    "right": ("right for every batch and size", "{:.0f}"),
    "silent_errors": ("silently wrong", "{:.0f}"),
    "refused": ("refused", "{:.0f}"),
    "size_refused": ("refused at some size", "{:.0f}"),
    "failed": ("failed in another way", "{:.0f}"),
    "compile_percent": ("architectures that compile, %", "{:.1f}"),
    "largest_error": ("largest fp32 error, of the largest output", "{:.1e}"),
    "with_parts_sent_back": ("with a kernel sent back to torch", "{:.0f}"),
    "timed": ("timings", "{:.0f}"),
    "slower_than_eager_by_5_percent": ("more than 5 % slower than torch", "{:.0f}"),
    "largest_share": ("slowest, of torch's time", "{:.3f}"),
    "median_share": ("median, of torch's time", "{:.3f}"),
}


def summary() -> str:
    figures = read("zoo-compile")["figures"]
    lines = ["| | |", "|---|---|"]
    lines += [
        f"| {title} | {form.format(figures[name])} |"
        for name, (title, form) in SUMMARY.items()
    ]
    return "\n".join(lines)


def architectures() -> str:
    """One row an architecture: how often it is as fast as torch with each kind of
    weights, for one item and for five.
    """
    figures = read("zoo-compile")["figures"]
    names = dict.fromkeys(key.split(".")[0] for key in figures if "." in key)
    lines = [
        "| architecture | kernels / torch calls | largest error | "
        + " | ".join(WEIGHTS)
        + " |",
        "|---|---|---|" + "---|" * len(WEIGHTS),
    ]
    lines += [_row(figures, name) for name in names]
    return "\n".join(lines)


def _row(figures: dict[str, Any], name: str) -> str:
    counts = [figures.get(f"{name}.dense.{k}") for k in ("kernels", "torch_calls")]
    told = "" if None in counts else " / ".join(f"{count:.0f}" for count in counts)
    errors = [figures.get(f"{name}.{weights}.error", 0.0) for weights in WEIGHTS]
    cells = [_times(figures, f"{name}.{weights}") for weights in WEIGHTS]
    return f"| {name} | {told} | {max(errors):.1e} | {' | '.join(cells)} |"


def _times(figures: dict[str, Any], case: str) -> str:
    """How many times as fast as torch; what is not right is told instead."""
    kinds = ("wrong", "refused", "size_refused", "crash", "hangs", "other_error")
    for kind in kinds:
        if f"{case}.{kind}" in figures:
            return f"**{kind.replace('_', ' ')}**"
    shares = [figures.get(f"{case}.share_{batch}") for batch in BATCHES]
    if None in shares:
        return ""
    return " / ".join(f"{1 / share:.2f}" for share in shares)


TABLES = {"architectures-summary": summary, "architectures": architectures}
