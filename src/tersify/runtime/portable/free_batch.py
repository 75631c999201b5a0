"""The program of any batch, from those of a few."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tersify.runtime.portable.joining import Joined
from tersify.runtime.portable.program import Program
from tersify.runtime.portable.sizes import Grid, Sizes

# what differs between them by their ratio, and nothing else, is the batch
BATCHES = (2, 3)
ANOTHER = 5  # a polynomial through two batches must hold for it
# where a call says how many items there are
ITEMS = {"input": 1, "input_ids": 1, "view": 2}
Make = Callable[[Sequence[Tensor]], Program]


@dataclass(frozen=True, eq=False)
class Free:
    """A program, and inputs of sizes at which it must still make what the module makes."""

    program: Program
    shown: tuple[tuple[Tensor, ...], ...] = ()


def with_free_batch(make: Make, args: Sequence[Tensor]) -> Free | None:
    """As older readers know it, where the items stay apart from start to end; else with
    sizes that are polynomials of the batch.
    """
    try:
        given = [tuple(items_of(x, n) for x in args) for n in (*BATCHES, ANOTHER)]
        programs = list(map(make, given))
        program = Joined(programs, Grid(BATCHES, [1]), [Sizes(ANOTHER, 1)]).program()
        shown = (tuple(items_of(x, 1) for x in args), given[2])
    except ValueError:
        return None  # the module takes no other batch
    free = replace(program, batch=None)
    return _counted_per_batch(free, shown) if has_batch(free) else None


def _counted_per_batch(program: Program, shown: tuple[tuple[Tensor, ...], ...]) -> Free:
    """What the calls say of one item of the batch, where that is all that differs."""
    calls = [list(call) for call in program.calls]
    for call in calls:
        place = ITEMS.get(call[0], 0)
        match call[place]:
            case {"terms": [[int(count), 1, 0]], **more} if not more:
                call[place] = count
            case int():  # the same for any batch, so it is no count of one
                return Free(program, shown)
    if "{" in json.dumps(calls):
        return Free(program, shown)
    return Free(replace(program, calls=tuple(calls), absolute=False))


def has_batch(program: Program) -> bool:
    return all(
        port.shape and port.shape[0] is None
        for port in (*program.inputs, *program.outputs)
    )


def items_of(x: Tensor, batch: int) -> Tensor:
    """As many items of the example, repeated where there are too few."""
    if not x.ndim or not len(x):
        raise ValueError("the example has no items")
    return torch.cat([x] * -(-batch // len(x)))[:batch].contiguous()
