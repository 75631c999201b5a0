"""Recipe: ordered rules 'glob over weight names → methods, applied in order', in Python or TOML."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tersify.methods import Method, Site, from_table, nearest
from tersify.toml import read_toml, write_toml


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The weights a glob (or several) names, and what becomes of them; no methods: they stay as they are.

    A glob with a wildcard reaches weights of two dimensions or more, never biases or normalisation;
    a full name reaches anything.
    """

    weights: str | tuple[str, ...] = "*"
    methods: tuple[Method, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", tuple(self.methods))
        if not isinstance(self.weights, str):
            object.__setattr__(self, "weights", tuple(self.weights))
        if not self.globs or not all(isinstance(g, str) and g for g in self.globs):
            raise ValueError(f"a rule's weights must be a glob or a list of globs, got {self.weights!r}")
        _check_chain(self)

    @property
    def globs(self) -> tuple[str, ...]:
        return (self.weights,) if isinstance(self.weights, str) else self.weights

    def reaches(self, site: Site) -> bool:
        names = (site.name, *site.aliases)
        return any(
            name == glob or (site.latent.ndim >= 2 and fnmatch.fnmatchcase(name, glob))
            for glob in self.globs
            for name in names
        )


def _check_chain(rule: Rule) -> None:
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


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What each weight should become, and how the lab's trainer likes to train it (`train`)."""

    rules: tuple[Rule, ...]
    description: str = ""
    train: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", tuple(self.rules))
        object.__setattr__(self, "train", dict(self.train))
        if not any(rule.methods for rule in self.rules):
            raise ValueError("a recipe needs at least one rule with a method")

    def assign(self, sites: Sequence[Site]) -> list[tuple[Rule, list[Site]]]:
        """Each rule with the sites it gets; the first rule that reaches a site wins."""
        assigned = []
        left = list(sites)
        for rule in self.rules:
            reached = [site for site in sites if rule.reaches(site)]
            if not reached:
                names = [site.name for site in sites]
                raise ValueError(f"rule {rule.weights!r} matches no weight; {nearest(rule.globs[0], names)}")
            assigned.append((rule, [site for site in left if site in reached]))
            left = [site for site in left if site not in reached]
        return assigned

    def to_toml(self) -> str:
        rules = []
        for rule in self.rules:
            weights = rule.weights if isinstance(rule.weights, str) else list(rule.weights)
            rules.append({"weights": weights, "methods": [m.to_table() for m in rule.methods]})
        document: dict[str, Any] = {"description": self.description} if self.description else {}
        document["rules"] = rules
        if self.train:
            document["train"] = dict(self.train)
        return write_toml(document)

    @classmethod
    def from_toml(cls, text: str) -> Recipe:
        document = read_toml(text, "the recipe")
        _check_keys("a recipe", document, ["description", "rules", "train"])
        rules = document.get("rules")
        if not isinstance(rules, list) or not all(isinstance(r, dict) for r in rules):
            raise ValueError('a recipe needs [[rules]] tables, each with weights = "…" and methods = […]')
        return cls(
            rules=tuple(_rule(table) for table in rules),
            description=document.get("description", ""),
            train=document.get("train", {}),
        )

    @classmethod
    def load(cls, source: str | Path | Recipe) -> Recipe:
        """A recipe from a TOML file, or a ready one by its name ('ternary-log')."""
        if isinstance(source, Recipe):
            return source
        path = Path(source)
        if not path.is_file():
            ready = {p.stem: p for p in ready_recipes()}
            if path.stem not in ready or path.suffix not in ("", ".toml"):
                raise ValueError(
                    f"no recipe file {str(source)!r}, nor a ready recipe of that name; {nearest(path.stem, ready)}"
                )
            path = ready[path.stem]
        try:
            return cls.from_toml(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}") from None


def ready_recipes() -> list[Path]:
    """The recipes that come with Tersify: inside the package when installed, beside src in a checkout."""
    here = Path(__file__).parent
    for folder in (here / "recipes", here.parent.parent / "recipes"):
        if folder.is_dir():
            return sorted(folder.glob("*.toml"))
    return []


def _rule(table: Mapping[str, Any]) -> Rule:
    _check_keys("a rule", table, ["weights", "methods"])
    methods = table.get("methods", [])
    if not isinstance(methods, list) or not all(isinstance(m, dict) for m in methods):
        raise ValueError(
            f'a rule\'s methods must be a list of tables such as {{ method = "ternary" }}, got {methods!r}'
        )
    return Rule(weights=table.get("weights", "*"), methods=tuple(from_table(m) for m in methods))


def _check_keys(what: str, table: Mapping[str, Any], known: list[str]) -> None:
    for key in table:
        if key not in known:
            raise ValueError(f"{what} has no key {key!r}; {nearest(key, known)}")
