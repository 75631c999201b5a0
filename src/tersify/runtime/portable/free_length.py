"""The program of any length, from those of several: the module is captured for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tersify.runtime.portable.free_batch import (
    ANOTHER,
    BATCHES,
    Free,
    Make,
    has_batch,
    items_of,
)
from tersify.runtime.portable.joining import Differs, Joined
from tersify.runtime.portable.program import Program
from tersify.runtime.portable.sizes import Grid, Lengths, Sizes

MOST_STEPS = 8  # that are tried: a network with strides takes lengths in steps
SMALLEST = 3  # of the lengths below the example's that are tried


Fits = Callable[[Program, Sequence[Tensor]], bool]


def with_free_length(
    make: Make, args: Sequence[Tensor], other: Sequence[Tensor], fits: Fits
) -> Free:
    """`fits` says whether a program makes what the module makes of these inputs."""
    search = _Search(make, args, other, fits)
    for step in search.steps():
        try:
            found = search.joined(step, [search.batch])
        except ValueError as problem:
            reason = problem
            continue
        try:
            return search.joined(step, BATCHES)
        except ValueError:
            return found  # the module takes no other batch
    raise ValueError(
        f"the length cannot be free: from length to length {reason}; leave the second example out for a plan of one"
    )


class _Search:
    def __init__(
        self, make: Make, args: Sequence[Tensor], other: Sequence[Tensor], fits: Fits
    ) -> None:
        self._axes, self._short, self._long = _lengths(args, other)
        self._make = make
        self._fits = fits
        self._programs: dict[Sizes, Program] = {}
        pairs = zip(args, other, strict=True)
        self._shown = [max(a, b, key=lambda x: x.numel()) for a, b in pairs]
        self.batch = len(args[0])

    def steps(self) -> Iterator[int]:
        """One, and what divides the difference of the two lengths."""
        apart = self._long - self._short
        found = [n for n in range(1, apart + 1) if apart % n == 0]
        yield from found[:MOST_STEPS]

    def joined(self, step: int, batches: Sequence[int]) -> Free:
        # Between the two lengths, or as near to the longer one as four of them allow: a
        # table of places may end there.
        last = self._long - 3 * step
        short = min(self._short, last) if last > 0 else self._short
        lengths = [short + i * step for i in range(3)]
        grid = Grid(batches, lengths)
        some = few = many = batches[0]
        checks = [Sizes(some, short + 3 * step), Sizes(some, self._long)]
        if len(batches) > 1:
            few, many = 1, 3
            checks.append(Sizes(ANOTHER, short))
        joined = Joined(self._all([*grid.points, *checks]), grid, checks)
        program = joined.program()
        if len(batches) > 1:
            program = replace(program, batch=None)
            if not has_batch(program):
                raise Differs("an input or output has no batch")
        least = self._least(step, grid, checks, short)
        most = max(s.length for s in checks) if joined.cuts_vectors else None
        # A plan of one step leaves calls out that change nothing there: it is another
        # one, and that of longer inputs may serve as well.
        before = least - step
        earlier = replace(program, length=Lengths(before, step, most))
        given = (self._given(Sizes(batch, before)) for batch in (few, many))
        if before > 0 and all(self._fits(earlier, inputs) for inputs in given):
            least = before
        program = replace(program, length=Lengths(least, step, most))
        sizes = (Sizes(few, least), Sizes(many, short + step), Sizes(few, self._long))
        return Free(program, tuple(map(self._given, sizes)))

    def _least(self, step: int, grid: Grid, checks: list[Sizes], short: int) -> int:
        """The smallest length that fits in with the others, of a few."""
        below = range(short % step or step, short, step)
        for length in [*below[:SMALLEST], *below[len(below) // 2 :][:1]]:
            more = [*checks, Sizes(checks[0].batch, length)]
            try:
                Joined(self._all([*grid.points, *more]), grid, more).program()
            except ValueError:
                continue
            return length
        return short

    def _all(self, sizes: Sequence[Sizes]) -> list[Program]:
        for one in sizes:
            if one not in self._programs:
                self._programs[one] = self._make(self._given(one))
        return [self._programs[one] for one in sizes]

    def _given(self, sizes: Sizes) -> tuple[Tensor, ...]:
        """The longer example cut, or repeated, to these sizes."""
        made = []
        for x, axes in zip(self._shown, self._axes, strict=True):
            for axis in axes:
                places = torch.arange(sizes.length) % x.shape[axis]
                x = x.index_select(axis, places)
            made.append(items_of(x, sizes.batch))
        return tuple(made)


def _lengths(
    args: Sequence[Tensor], other: Sequence[Tensor]
) -> tuple[list[list[int]], int, int]:
    """The axes of every input whose size differs, and both lengths."""
    if [(x.ndim, x.dtype) for x in args] != [(x.ndim, x.dtype) for x in other]:
        raise ValueError(
            "the second example must have inputs of as many axes and of the same types as the first"
        )
    pairs = list(zip(args, other, strict=True))
    axes = [
        [
            i
            for i, sizes in enumerate(zip(a.shape, b.shape, strict=True))
            if len({*sizes}) > 1
        ]
        for a, b in pairs
    ]
    if any(0 in found for found in axes):
        raise ValueError(
            "the second example must have the same batch as the first, and another length"
        )
    lengths = {
        (a.shape[i], b.shape[i])
        for (a, b), found in zip(pairs, axes, strict=True)
        for i in found
    }
    if len(lengths) != 1:
        raise ValueError(
            "the second example must be one that has another length, the same in all of its inputs, "
            f"got {len(lengths)} that differ"
        )
    short, long = sorted(*lengths)
    return axes, short, long
