"""Recipe: ordered rules 'glob over weight names → methods, applied in order', in Python
or TOML.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from tersify.checks import check_choice, check_whole
from tersify.methods import Method, Site, from_table, nearest
from tersify.methods.inputs import InputMethod, input_from_table
from tersify.reach import reached_by
from tersify.toml import read_toml, write_toml


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
            _all_of(Method, "a rule's methods", self.methods, "Prune(sparsity=0.9)"),
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
            _all_of(
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


def _all_of(kind: type, what: str, given: Any, such_as: str) -> tuple[Any, ...]:
    if not isinstance(given, (list, tuple)) or not all(
        isinstance(each, kind) for each in given
    ):
        raise ValueError(
            f"{what} must be a list of objects such as {such_as}, got {given!r}"
        )
    return tuple(given)


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


STARTS = ("scratch", "trained")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What each weight should become, and how the lab's trainer likes to train it.

    Args:
        rules: the first rule that names a weight gets it.
        description: one line for people.
        start: what the trainer begins with: "scratch", or "trained", a network that has been trained already.
        train: settings of the lab's trainer, which a loop of your own does not have.
        norms: save batch norms and biases in so many bits; without, as they are.
        inputs: rules for the inputs of layers.
    """

    rules: tuple[Rule, ...]
    description: str = ""
    start: str = "scratch"
    train: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[InputRule, ...] = ()
    norms: int | None = None

    def __post_init__(self) -> None:
        if self.norms is not None:
            check_whole("norms", self.norms, low=2, high=16)
        object.__setattr__(
            self,
            "rules",
            _all_of(Rule, "a recipe's rules", self.rules, "Rule(methods=[…])"),
        )
        object.__setattr__(
            self,
            "inputs",
            _all_of(InputRule, "inputs", self.inputs, "InputRule(methods=[…])"),
        )
        object.__setattr__(self, "train", dict(self.train))
        check_choice("start", self.start, STARTS)
        if not any(rule.methods for rule in self.rules) and not any(
            rule.methods for rule in self.inputs
        ):
            raise ValueError("a recipe needs at least one rule with a method")

    @property
    def needs_data(self) -> bool:
        """Whether a method asks for calibration batches."""
        weights = any(
            method.needs_calibration or method.needs_inputs
            for rule in self.rules
            for method in rule.methods
        )
        return weights or any(
            method.needs_data for rule in self.inputs for method in rule.methods
        )

    @property
    def needs_batches(self) -> bool:
        """Whether a method of it searches, and so looks at every batch."""
        return any(
            method.needs_batches for rule in self.rules for method in rule.methods
        )

    @property
    def needs_length(self) -> bool:
        """Whether a method moves with time, so that it must know how long training
        takes.
        """
        return any(
            method.needs_length for rule in self.rules for method in rule.methods
        )

    def with_settings(self, settings: Mapping[str, Any]) -> Recipe:
        """The recipe with these `settings`, each in the one method that has it."""
        own = {
            m.name: [spec.name for spec in fields(m)]
            for rule in self.rules
            for m in rule.methods
        }
        meant: dict[str, dict[str, Any]] = {name: {} for name in own}
        for key, value in settings.items():
            having = [name for name, known in own.items() if key in known]
            if not having:
                every = [name for known in own.values() for name in known]
                raise ValueError(
                    f"no method of the recipe has a setting {key!r}; {nearest(key, every)}"
                )
            if len(having) > 1:
                raise ValueError(
                    f"{key!r} is a setting of {' and '.join(having)}; write a recipe that says which"
                )
            meant[having[0]][key] = value
        rules = tuple(
            replace(
                rule,
                methods=tuple(m.with_settings(meant[m.name]) for m in rule.methods),
            )
            for rule in self.rules
        )
        return replace(self, rules=rules)

    def assign(self, sites: Sequence[Site]) -> list[tuple[Rule, list[Site]]]:
        """Each rule with those of `sites` that it gets; the first rule that reaches a
        site wins.
        """
        assigned = []
        left = list(sites)
        for rule in self.rules:
            reached = rule.reached(sites)
            own = [site for site in left if site in reached]
            if not own:
                raise ValueError(
                    f"rule {rule.weights!r} gets no weight: rules before it take all it names; move it up"
                )
            assigned.append((rule, own))
            left = [site for site in left if site not in own]
        return assigned

    def assign_inputs(self, layers: Mapping[str, nn.Module]) -> dict[str, InputMethod]:
        """The method of each of `layers` whose input is quantized; the first rule that
        reaches a layer wins.
        """
        assigned: dict[str, InputMethod | None] = {}
        for rule in self.inputs:
            new = [name for name in rule.reached(layers) if name not in assigned]
            if not new:
                raise ValueError(
                    f"rule {rule.activations!r} gets no layer: rules before it take all it names; move it up"
                )
            assigned |= dict.fromkeys(new, rule.methods[0] if rule.methods else None)
        return {name: method for name, method in assigned.items() if method is not None}

    def to_toml(self) -> str:
        """The recipe as the text of a TOML file, which `from_toml` reads."""
        return write_toml(self._document())

    def describe(self) -> str:
        """The TOML, with a Python function given by its name: for files and
        checkpoints, not to be read back.
        """
        return write_toml(self._document(), functions=True)

    def _document(self) -> dict[str, Any]:
        rules = []
        for rule in self.rules:
            weights = (
                rule.weights if isinstance(rule.weights, str) else list(rule.weights)
            )
            rules.append(
                {"weights": weights, "methods": [m.to_table() for m in rule.methods]}
            )
        for each in self.inputs:
            named = (
                each.activations
                if isinstance(each.activations, str)
                else list(each.activations)
            )
            rules.append(
                {"activations": named, "methods": [m.to_table() for m in each.methods]}
            )
        document: dict[str, Any] = (
            {"description": self.description} if self.description else {}
        )
        if self.start != "scratch":
            document["start"] = self.start
        if self.norms is not None:
            document["norms"] = self.norms
        document["rules"] = rules
        if self.train:
            document["train"] = dict(self.train)
        return document

    @classmethod
    def from_toml(cls, text: str) -> Recipe:
        """A recipe from `text`, the content of a TOML file."""
        document = read_toml(text, "the recipe")
        if "compensation" in document:
            raise ValueError(
                "a recipe with [compensation] is for tersify compress-lm; rules are what training needs"
            )
        _check_keys(
            "a recipe", document, ["description", "start", "norms", "rules", "train"]
        )
        if not isinstance(document.get("description", ""), str):
            raise ValueError(
                f"a recipe's description is text, got {document['description']!r}"
            )
        if not isinstance(document.get("train", {}), dict):
            raise ValueError(
                f"a recipe's train is a table [train], got {document['train']!r}"
            )
        rules = document.get("rules")
        if not isinstance(rules, list) or not all(isinstance(r, dict) for r in rules):
            raise ValueError(
                'a recipe needs [[rules]] tables, each with weights = "…" and methods = […]'
            )
        return cls(
            rules=tuple(_rule(table) for table in rules if "activations" not in table),
            inputs=tuple(
                _input_rule(table) for table in rules if "activations" in table
            ),
            description=document.get("description", ""),
            start=document.get("start", "scratch"),
            train=document.get("train", {}),
            norms=document.get("norms"),
        )

    @classmethod
    def load(cls, source: str | Path | Recipe) -> Recipe:
        """A recipe from `source`: a TOML file, or a ready one by its name
        ('ternary-log').
        """
        if isinstance(source, Recipe):
            return source
        if not isinstance(source, (str, Path)):
            raise ValueError(
                f"a recipe is a TOML file, the name of a ready one or a Recipe, got a {type(source).__name__}"
            )
        path = Path(source)
        if not path.is_file():
            ready = {p.stem: p for p in ready_recipes()}
            if path not in {
                p
                for name in ready
                for p in (Path(name), Path("recipes") / f"{name}.toml")
            }:
                raise ValueError(
                    f"no recipe file {str(source)!r}, nor a ready recipe of that name; {nearest(path.stem, ready)}"
                )
            path = ready[path.stem]
        try:
            return cls.from_toml(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}") from None


def training_length(
    recipe: Recipe, epochs: int | None, steps_per_epoch: int | None, steps: int | None
) -> tuple[int, int]:
    """Epochs and steps in each; a run that is given in steps counts as one epoch."""
    for what, value in (
        ("epochs", epochs),
        ("steps_per_epoch", steps_per_epoch),
        ("steps", steps),
    ):
        if value is not None and value < 1:
            raise ValueError(f"{what} must be at least 1, got {value}")
    if steps is not None:
        if epochs is not None or steps_per_epoch is not None:
            raise ValueError(
                "the length of training is steps, or epochs and steps_per_epoch; give one of these"
            )
        return 1, steps
    if recipe.needs_length and steps_per_epoch is None:
        raise ValueError(
            "the recipe has schedules, which must know how long training takes; "
            "give epochs= and steps_per_epoch=, or steps="
        )
    return epochs or 1, steps_per_epoch or 1


# how the names of recipes for language models begin: they have [compensation], not
# rules
LANGUAGE = "lm-"


def ready_recipes() -> list[Path]:
    """The recipes that come with Tersify, for training and after it."""
    return [path for path in _recipe_files() if not path.stem.startswith(LANGUAGE)]


def language_recipes() -> list[Path]:
    """The recipes that come with Tersify for `tersify compress-lm`."""
    return [path for path in _recipe_files() if path.stem.startswith(LANGUAGE)]


def _recipe_files() -> list[Path]:
    """Inside the package when installed, beside src in a checkout."""
    here = Path(__file__).parent
    for folder in (here / "recipes", here.parent.parent / "recipes"):
        if folder.is_dir():
            return sorted(folder.glob("*.toml"))
    return []


def _rule(table: Mapping[str, Any]) -> Rule:
    _check_keys("a rule", table, ["weights", "activations", "methods"])
    methods = _method_tables(table, "ternary")
    return Rule(
        weights=table.get("weights", "*"), methods=tuple(from_table(m) for m in methods)
    )


def _input_rule(table: Mapping[str, Any]) -> InputRule:
    _check_keys("a rule for activations", table, ["activations", "methods"])
    methods = _method_tables(table, "uniform")
    return InputRule(
        activations=table["activations"],
        methods=tuple(input_from_table(m) for m in methods),
    )


def _method_tables(table: Mapping[str, Any], such_as: str) -> list[dict[str, Any]]:
    methods = table.get("methods", [])
    if not isinstance(methods, list) or not all(isinstance(m, dict) for m in methods):
        raise ValueError(
            f'a rule\'s methods must be a list of tables such as {{ method = "{such_as}" }}, got {methods!r}'
        )
    return methods


def _check_keys(what: str, table: Mapping[str, Any], known: list[str]) -> None:
    for key in table:
        if key not in known:
            raise ValueError(f"{what} has no key {key!r}; {nearest(key, known)}")
