"""Calls that draw random numbers, and captures that leave no trace of having drawn some."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch


def is_random(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call draws numbers. Attention, dropout and recurrent layers carry the
    tag for what they may drop: with a chance of 0, or outside of training, it is nothing.
    """
    if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
        return False
    schema = func._schema.arguments
    given = {a.name: a.default_value for a in schema}
    given |= dict(zip(given, args, strict=False)) | dict(kwargs)
    chance = next(
        (given[name] for name in ("dropout_p", "dropout") if name in given), 1
    )
    if "train" in given and "p" in given:
        chance = given["p"]
    return chance != 0 and given.get("train", given.get("training")) is not False


@contextlib.contextmanager
def numbers_kept() -> Iterator[None]:
    """Afterwards torch's generator of the CPU gives the numbers that it would have given
    before.
    """
    before = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(before)


class Generators:
    """Generators that a forward hands to torch itself."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[torch.Generator, torch.Tensor]] = {}

    def keep(self, kwargs: Mapping[str, Any]) -> None:
        """To be called before a call: what its generator would give is remembered."""
        given = kwargs.get("generator")
        if given is not None and id(given) not in self._before:
            self._before[id(given)] = (given, given.get_state())

    def restore(self) -> None:
        for generator, state in self._before.values():
            generator.set_state(state)
