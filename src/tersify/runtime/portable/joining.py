"""Programs of one network at several sizes become one, in which what changes with the
sizes is a polynomial of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tersify.runtime.portable.program import (
    Place,
    Plain,
    Port,
    Program,
    Vector,
    vector,
)
from tersify.runtime.portable.signatures import PACKS
from tersify.runtime.portable.sizes import Grid, Sizes

BATCH, LENGTH = {"terms": [[1, 1, 0]]}, {"terms": [[1, 0, 1]]}


class Differs(ValueError):  # noqa: N818  (a refusal, not a fault)
    """The programs are not one."""


class Joined:
    """`programs` are those of the grid's points and then of `checks`; the longest lends
    its numbers, and vectors of others may be the beginnings of its own.
    """

    def __init__(
        self, programs: Sequence[Program], grid: Grid, checks: Sequence[Sizes]
    ) -> None:
        self._programs = programs
        self._grid = grid
        self._sizes = [*grid.points, *checks]
        self._long = max(range(len(programs)), key=lambda i: self._sizes[i].length)
        self.cuts_vectors = False  # some end where the longest of the lengths ends

    def program(self) -> Program:
        calls = tuple(self._each([p.calls for p in self._programs]))
        usual = [[_usual(*pair) for pair in self._pairs(p)] for p in self._programs]
        weights = tuple(self._each(usual))
        if "{" in json.dumps(weights):
            raise Differs("a weight has another size")
        return replace(
            self._programs[0],
            inputs=tuple(self._ports([p.inputs for p in self._programs], LENGTH)),
            outputs=tuple(self._ports([p.outputs for p in self._programs], None)),
            calls=calls,
            weights=weights,
            numbers=self._programs[self._long].numbers,
            absolute=True,
        )

    def _pairs(self, program: Program) -> Iterator[tuple[Plain, Plain]]:
        return zip(program.weights, self._programs[0].weights, strict=False)

    def _each(self, lists: Sequence[Sequence[Plain]]) -> Iterator[Plain]:
        if len(set(map(len, lists))) > 1:
            more, fewer = max(lists, key=len), min(lists, key=len)
            raise Differs(f"it makes other calls, {more[len(fewer)][0]!r} for none")
        for given in zip(*lists, strict=True):
            names = list(dict.fromkeys(call[0] for call in given))
            if len(names) > 1:
                raise Differs(f"it makes other calls, {names[1]!r} for {names[0]!r}")
            yield self._one(names[0], given)

    def _one(self, name: str, given: Sequence[Any]) -> Any:
        """What stands in one place of all programs."""
        first = given[0]
        if isinstance(first, Vector):
            return self._vector(name, given)
        if isinstance(first, Place):
            return self._vector(name, [[place, 1] for place in given])[0]
        if isinstance(first, list) and len(set(map(len, given))) == 1:
            return [self._one(name, parts) for parts in zip(*given, strict=True)]
        return first if given.count(first) == len(given) else self._size(name, given)

    def _vector(self, name: str, given: Sequence[Any]) -> list[Any]:
        """In the numbers of the longest, of which those of a shorter length may be the
        first.
        """
        pairs = zip(given, self._programs, strict=True)
        found = [vector(part, program.numbers).tobytes() for part, program in pairs]
        longest = found[self._long]
        begin, count = given[self._long]
        if found.count(longest) == len(found):
            return [begin, count]
        counts = tuple(count for _, count in given)
        size = self._size(name, counts) if len(set(counts)) > 1 else None
        # with another batch there would be more than the longest has
        if not all(map(longest.startswith, found)) or _with_batch(size):
            raise Differs(f"{name!r} has other numbers")
        self.cuts_vectors = True
        return [begin, size]

    def _size(self, name: str, given: Sequence[Any]) -> dict[str, Any]:
        if set(map(type, given)) != {int}:
            raise Differs(f"{name!r} has other arguments")
        made = self._grid.through(given[: len(self._grid.points)])
        if made is None or not self._grid.holds(made, self._sizes, given):
            raise Differs(f"{name!r} has a size that is no polynomial of them")
        return made

    def _ports(
        self, ports: Sequence[Sequence[Port]], only: dict[str, Any] | None
    ) -> Iterator[Port]:
        """`only` is what a size that changes must be."""
        for given in zip(*ports, strict=True):
            name = given[0].name
            shape = self._one(name, [list(port.shape) for port in given])
            if shape[:1] == [BATCH]:
                shape[0] = None
            free = [size for size in shape if isinstance(size, dict)]
            if any(map(_with_batch, free)) or free != [only or size for size in free]:
                raise Differs(
                    f"{name!r} has a size that is neither its length nor fixed"
                )
            yield replace(given[0], shape=tuple(shape))


def _with_batch(size: dict[str, Any] | None) -> bool:
    return size is not None and any(batch for _, batch, _ in size["terms"])


def _usual(weight: Plain, first: Plain) -> Plain:
    """The weight with the usual size of the first, which only says what is fast."""
    made = list(weight)
    for place, kind in enumerate(PACKS[weight[0]], start=1):
        if kind == "size":
            made[place] = first[place]
    return made
