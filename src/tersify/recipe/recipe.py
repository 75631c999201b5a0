"""Recipe: ordered rules 'glob over weight names → methods, applied in order', in Python
or TOML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from tersify.checks import check_choice, check_given, check_whole
from tersify.methods import Method, Site, nearest
from tersify.methods.inputs import InputMethod
from tersify.recipe.ready_recipes import recipe_file
from tersify.recipe.recipe_toml import recipe_fields, rule_tables
from tersify.recipe.rules import InputRule, Rule, all_of
from tersify.toml import write_toml

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
        check_given(check_whole, "norms", self.norms, low=2, high=16)
        # The dataclass is frozen, so normalized values are set past it.
        rules = all_of(Rule, "a recipe's rules", self.rules, "Rule(methods=[…])")
        inputs = all_of(InputRule, "inputs", self.inputs, "InputRule(methods=[…])")
        object.__setattr__(self, "rules", rules)
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "train", dict(self.train))
        check_choice("start", self.start, STARTS)
        if not any(rule.methods for rule in (*rules, *inputs)):
            raise ValueError("a recipe needs at least one rule with a method")

    @property
    def methods(self) -> list[Method]:
        """The methods of all rules for weights, in order."""
        return [method for rule in self.rules for method in rule.methods]

    @property
    def needs_data(self) -> bool:
        """Whether a method asks for calibration batches."""
        if any(m.needs_calibration or m.needs_inputs for m in self.methods):
            return True
        return any(m.needs_data for rule in self.inputs for m in rule.methods)

    @property
    def needs_batches(self) -> bool:
        """Whether a method of it searches, and so looks at every batch."""
        return any(method.needs_batches for method in self.methods)

    @property
    def needs_length(self) -> bool:
        """Whether a method moves with time, so that it must know how long training
        takes.
        """
        return any(method.needs_length for method in self.methods)

    def with_settings(self, settings: Mapping[str, Any]) -> Recipe:
        """The recipe with these `settings`, each in the one method that has it."""
        meant: dict[str, dict[str, Any]] = {method.name: {} for method in self.methods}
        for key, value in settings.items():
            meant[self._method_with(key)][key] = value
        rules = []
        for rule in self.rules:
            methods = tuple(m.with_settings(meant[m.name]) for m in rule.methods)
            rules.append(replace(rule, methods=methods))
        return replace(self, rules=tuple(rules))

    def _method_with(self, setting: str) -> str:
        """The name of the one method that has this setting."""
        known = {m.name: [spec.name for spec in fields(m)] for m in self.methods}
        # A setting of two methods would be ambiguous, so exactly one must have it.
        having = [name for name, settings in known.items() if setting in settings]
        if not having:
            every = [name for settings in known.values() for name in settings]
            raise ValueError(
                f"no method of the recipe has a setting {setting!r}; {nearest(setting, every)}"
            )
        if len(having) > 1:
            raise ValueError(
                f"{setting!r} is a setting of {' and '.join(having)}; write a recipe that says which"
            )
        return having[0]

    def assign(self, sites: Sequence[Site]) -> list[tuple[Rule, list[Site]]]:
        """Each rule with those of `sites` that it gets; the first rule that reaches a
        site wins.
        """
        assigned = []
        left = list(sites)
        for rule in self.rules:
            reached = rule.reached(sites)
            # In the order of the network, not of the globs.
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
        """The recipe as TOML has it: what is as it is by default is left out."""
        document: dict[str, Any] = {}
        if self.description:
            document["description"] = self.description
        if self.start != "scratch":
            document["start"] = self.start
        if self.norms is not None:
            document["norms"] = self.norms
        document["rules"] = rule_tables(self.rules, self.inputs)
        if self.train:
            document["train"] = dict(self.train)
        return document

    @classmethod
    def from_toml(cls, text: str) -> Recipe:
        """A recipe from `text`, the content of a TOML file."""
        return cls(**recipe_fields(text))

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
        path = recipe_file(source)
        try:
            return cls.from_toml(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}") from None
