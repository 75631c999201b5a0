"""Settings of pruning that cannot be, alone or together, and networks that would lose a
whole layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tersify.checks import check_choice, check_given, check_range, check_whole
from tersify.methods.pruning.choice import SCOPES, least_kept
from tersify.methods.pruning.pruned_sites import PruneBound
from tersify.methods.pruning.scores import SCORES
from tersify.methods.pruning.structures import GROUPED, n_of_m, tiling_named

if TYPE_CHECKING:
    from tersify.methods.pruning.prune import Prune


def check_settings(method: Prune) -> None:
    check_choice("score", method.score, SCORES)
    check_choice("scope", method.scope, SCOPES)
    check_whole("seed", method.seed)
    # Both refuse a name that they do not know.
    _ = method.pace, tiling_named(method.structure)
    _check_amount(method)
    _check_scope(method)
    _check_scores(method)


def _check_amount(method: Prune) -> None:
    amounts = {name: getattr(method, name) for name in ("sparsity", "density", "count")}
    given = [name for name, amount in amounts.items() if amount is not None]
    # Two sources of one number would contradict each other without a word.
    fixed = _what_fixes_the_amount(method)
    if fixed and given:
        raise ValueError(
            f"{fixed} leaves no amount to choose; leave {given[0]} out, got {amounts[given[0]]!r}"
        )
    if len(given) > 1:
        raise ValueError(
            f"the amount is one of sparsity, density and count, got {' and '.join(given)}"
        )
    check_given(check_range, "sparsity", method.sparsity, low=0, high=1, high_open=True)
    check_given(check_range, "density", method.density, low=0, high=1, low_open=True)
    check_given(check_whole, "count", method.count, low=0)
    is_fraction = method.count is None and not method.is_soft
    if not 0 <= method.start <= (method.fraction if is_fraction else 1):
        raise ValueError(
            f"start must be a fraction between 0 and the final sparsity, got {method.start!r}"
        )


def _what_fixes_the_amount(method: Prune) -> str:
    if n_of_m(method.structure):
        return "structure 'N:M'"
    return "score 'soft-movement'" if method.is_soft else ""


def _check_scope(method: Prune) -> None:
    if n_of_m(method.structure) and method.scope != "layer":
        raise ValueError(
            "structure 'N:M' chooses among every M weights; leave scope out"
        )
    if method.scope == "row" and method.structure in GROUPED:
        raise ValueError(
            f"a {method.structure} spans whole rows or columns; set scope = 'layer' or 'global'"
        )
    check_range("floor", method.floor, low=0.0, high=1.0, high_open=True)
    if method.scope != "global":
        if method.floor:
            raise ValueError(
                f"floor keeps a fraction of each layer when all compete; set scope = 'global', got {method.scope!r}"
            )
        return
    # A count is compared when the layers are known, in `_check_room`.
    if method.count is None and method.fraction > 1 - method.floor:
        raise ValueError(
            f"sparsity {method.fraction:g} leaves less than the floor {method.floor:g} of every layer"
        )


def _check_scores(method: Prune) -> None:
    check_range(
        "threshold",
        method.threshold,
        low=0.0,
        high=1.0,
        low_open=True,
        high_open=True,
    )
    for name in ("head_start", "lines"):
        value = getattr(method, name)
        check_range(name, value, low=0.0, high=1e6)
        if value and method.score != "movement":
            raise ValueError(
                f"{name} belongs to score 'movement', got {value!r} with {method.score!r}; leave it out"
            )
    for name in ("lam", "gain"):
        check_range(name, getattr(method, name), low=0.0, high=1e6, low_open=True)


def check_leaves_something(method: Prune, bound: PruneBound) -> None:
    """Every layer, or row of it, keeps a unit at the end of the schedule."""
    units: dict[str, int] = {}
    for layer in bound.layers:
        # Only the shape counts, so the weights themselves stand in for scores.
        shape = layer.scores([site.entering() for site, _ in layer.scored]).shape
        units[layer.name] = shape[-1] if method.in_rows else shape.numel()
    if method.scope == "global":
        _check_room(method, units)
        return
    is_plain = method.structure == "element"
    what = "weights" if is_plain else f"units ({method.structure})"
    for name, count in units.items():
        gone = method.pruned(count, 1.0)
        if count and gone >= count:
            raise ValueError(
                f"{name!r} has {count} {what} and would lose all of them ({gone}); prune less, "
                "or give it a rule of its own"
            )


def _check_room(method: Prune, units: dict[str, int]) -> None:
    """Where all layers compete, each still keeps one unit, or its floor."""
    total = sum(units.values())
    wanted = method.pruned(total, 1.0)
    room = total - sum(least_kept(count, method.floor) for count in units.values())
    if wanted > room:
        raise ValueError(
            f"{wanted} of {total} units are to go, and each of {len(units)} layers keeps one, or its floor: "
            f"{room} can go at most; prune less or lower the floor"
        )
