"""Where a parameter's value goes: a trainer setting, a network option, the recipe, or a
field of its methods.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tersify.lab.names import unknown
from tersify.lab.trainer import TrainConfig
from tersify.methods import registered
from tersify.recipe import Recipe
from tersify.toml import read_toml, write_toml

RECIPE = "recipe"


def check_field(field: str, recipes: Sequence[Recipe]) -> None:
    """`train.lr`, `options.width`, `recipe`, `ternary.cap` (in every rule that has it)
    or `rules.0.ternary.cap`.
    """
    head, _, rest = field.partition(".")
    if field == RECIPE or (head == "options" and rest):
        return
    known = [f"train.{spec.name}" for spec in dataclasses.fields(TrainConfig)]
    for recipe in recipes:
        known += _fields_of(recipe)
    if field not in known:
        raise unknown("field of the space", field, dict.fromkeys([*known, RECIPE]))


def _fields_of(recipe: Recipe) -> list[str]:
    """The settings of its methods, for every rule and for each rule alone."""
    known: list[str] = []
    for number, rule in enumerate(recipe.rules):
        for method in rule.methods:
            settings = [spec.name for spec in dataclasses.fields(method)]
            own = [f"{method.name}.{setting}" for setting in settings]
            known += own
            known += [f"rules.{number}.{name}" for name in own]
            known.append(f"rules.{number}.weights")
    return known


def with_values(recipe: Recipe | None, values: Mapping[str, Any]) -> Recipe | None:
    """The recipe with the values that are meant for it."""
    meant = {
        k: v
        for k, v in values.items()
        if k != RECIPE and k.partition(".")[0] not in ("train", "options")
    }
    if recipe is None or not meant:
        return recipe
    # Changed as TOML, so that the values pass all the checks of a recipe's file.
    document = read_toml(recipe.to_toml(), "the recipe")
    for field, value in meant.items():
        number, name = _split(field)
        for index, rule in enumerate(document["rules"]):
            if number not in (None, index):
                continue
            if name == "weights":
                rule["weights"] = value
                continue
            method, _, setting = name.partition(".")
            assert method in registered()
            for table in rule["methods"]:
                if table["method"] == method:
                    table[setting] = value
    return Recipe.from_toml(write_toml(document))


def meant_for(place: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `train.…` or `options.…`, without that word."""
    return {
        key.partition(".")[2]: value
        for key, value in values.items()
        if key.startswith(f"{place}.")
    }


def _split(field: str) -> tuple[int | None, str]:
    found = re.fullmatch(r"rules\.(\d+)\.(.+)", field)
    return (int(found[1]), found[2]) if found else (None, field)
