"""Rules: which weights a glob names and what becomes of them; which layers, and what
their inputs become.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from tersify.methods import Method, Site, nearest
from tersify.methods.inputs import InputMethod
from tersify.recipe.reached_weights import reached_by


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The weights a glob (or several) names, and what becomes of them; no methods: they
    stay as they are.

    A glob with a wildcard reaches weights of two dimensions or more, never biases or
    normalisation, and leaves embeddings and frozen weights alone unless it matches
    nothing else; a full name reaches anything.

    Args:
        weights: a name, a glob, or several of them.
        methods: what becomes of these weights, applied in order: pruners first, then at most one quantizer.
    """

    weights: str | tuple[str, ...] = "*"
    methods: tuple[Method, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(
            self,
            "methods",
            all_of(Method, "a rule's methods", self.methods, "Prune(sparsity=0.9)"),
        )
        if isinstance(self.weights, (list, tuple)):
            object.__setattr__(self, "weights", tuple(self.weights))
        if not self.globs or not all(isinstance(g, str) and g for g in self.globs):
            raise ValueError(
                f"a rule's weights must be a glob or a list of globs, got {self.weights!r}"
            )
        _check_chain(self)

    @property
    def globs(self) -> tuple[str, ...]:
        """The globs, also where one was given alone."""
        return self.weights if isinstance(self.weights, tuple) else (self.weights,)

    def reached(self, sites: Sequence[Site]) -> list[Site]:
        """Those of `sites` that the globs name; each glob must name one."""
        return [site for glob in self.globs for site in reached_by(glob, sites)]


@dataclass(frozen=True, kw_only=True)
class InputRule:
    """The layers that globs name, by module, and what their inputs become; no method:
    they stay as they are.
    """

    activations: str | tuple[str, ...] = "*"
    methods: tuple[InputMethod, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(
            self,
            "methods",
            all_of(
                InputMethod,
                "a rule's activation methods",
                self.methods,
                "UniformInputs(bits=8)",
            ),
        )
        if isinstance(self.activations, (list, tuple)):
            object.__setattr__(self, "activations", tuple(self.activations))
        if not self.globs or not all(isinstance(g, str) and g for g in self.globs):
            raise ValueError(
                f"a rule's activations must be a glob or a list of globs, got {self.activations!r}"
            )
        if len(self.methods) > 1:
            raise ValueError(
                f"rule {self.activations!r}: an input is quantized once, got {len(self.methods)} methods; leave one"
            )

    @property
    def globs(self) -> tuple[str, ...]:
        return (
            self.activations
            if isinstance(self.activations, tuple)
            else (self.activations,)
        )

    def reached(self, layers: Mapping[str, nn.Module]) -> list[str]:
        """The names of the layers that the globs name; each glob must name one."""
        found: list[str] = []
        for glob in self.globs:
            named = [
                name
                for name in layers
                if name == glob or fnmatch.fnmatchcase(name, glob)
            ]
            if not named:
                raise ValueError(
                    f"rule {glob!r} matches no linear or convolutional layer, by module; {nearest(glob, list(layers))}"
                )
            found += named
        return found


def all_of(kind: type, what: str, given: Any, such_as: str) -> tuple[Any, ...]:
    if not isinstance(given, (list, tuple)) or not all(
        isinstance(each, kind) for each in given
    ):
        raise ValueError(
            f"{what} must be a list of objects such as {such_as}, got {given!r}"
        )
    return tuple(given)


def _check_chain(rule: Rule) -> None:
    # Neighbours are enough: a quantizer anywhere but last is `before` once.
    for before, behind in zip(rule.methods, rule.methods[1:]):  # noqa: B905
        if before.quantizes:
            raise ValueError(
                f"rule {rule.weights!r}: {behind.name!r} cannot follow the quantizer {before.name!r}; "
                "a chain is pruners first and at most one quantizer, last"
            )
        if behind.quantizes and not behind.keeps_zeros:
            raise ValueError(
                f"rule {rule.weights!r}: {behind.name!r} has no zero level, so it would undo the pruner "
                f"{before.name!r}; use a quantizer with a zero, such as 'ternary'"
            )
