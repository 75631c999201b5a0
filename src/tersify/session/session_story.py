"""What a session tells when it is printed: where training stands, which rule has which
weights, what is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tersify.methods import Site
from tersify.recipe import Rule

MOST_NAMES = 4


def session_story(
    rules: Sequence[tuple[Rule, Sequence[Site]]],
    *,
    description: str,
    steps_done: int,
    steps: int | None,
    figures: Mapping[str, float],
    untouched: Sequence[str],
) -> str:
    """A line for each thing to know; `steps` is None where the recipe needs no length
    and none was given.
    """
    of = "" if steps is None else f" of {steps:,}"
    lines = [
        f"Session: {description or 'a recipe of your own'}",
        f"  step {steps_done:,}{of}; {_figures_text(figures)}",
    ]
    for rule, sites in rules:
        chain = (
            " then ".join(method.name for method in rule.methods) or "left as they are"
        )
        count = sum(site.latent.numel() for site in sites)
        lines.append(
            f"  {_some([site.name for site in sites])}: {chain} ({count:,} weights, rule {rule.weights!r})"
        )
    if untouched:
        lines.append(f"  stay as they are: {_some(untouched)}")
    # The one mistake that costs a whole training: never calling step().
    if steps_done == 0 and steps is not None:
        lines.append(
            "  next: session.step() at the start of each batch; session.pack() after training"
        )
    return "\n".join(lines)


def packed_early(steps_done: int, steps: int) -> str:
    """What is to be told of weights that are packed before their schedules are at their
    end.
    """
    if steps_done == 0:
        return (
            "session.step was never called, so the recipe's schedules are where they begin; "
            "call it at the start of each batch, or use tersify.compress_ where there is no training"
        )
    return (
        f"packed at step {steps_done:,} of {steps:,}, before the recipe's schedules reached their end; tell attach the "
        "length that training has (status() looks at weights that are still trained)"
    )


def _figures_text(figures: Mapping[str, float]) -> str:
    words = {
        "progress": "{:.0f} % done",
        "zeros": "{:.1f} % zeros",
        "entropy": "{:.2f} bits a weight",
    }
    return ", ".join(
        words.get(name, f"{name} {{:.3g}}").format(value)
        for name, value in figures.items()
    )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_NAMES])
    return (
        f"{shown} and {len(names) - MOST_NAMES} more"
        if len(names) > MOST_NAMES
        else shown
    )
