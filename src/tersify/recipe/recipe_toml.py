"""A recipe's TOML: tables that become rules, and rules that become tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tersify.methods import from_table, nearest
from tersify.methods.inputs import input_from_table
from tersify.recipe.rules import InputRule, Rule
from tersify.toml import read_toml

KEYS = ["description", "start", "norms", "rules", "train"]


def rule_tables(
    rules: Sequence[Rule], inputs: Sequence[InputRule]
) -> list[dict[str, Any]]:
    """The rules as tables: those for weights, then those for activations."""
    of_weights = [
        {
            "weights": _as_written(rule.weights),
            "methods": [m.to_table() for m in rule.methods],
        }
        for rule in rules
    ]
    of_inputs = [
        {
            "activations": _as_written(rule.activations),
            "methods": [m.to_table() for m in rule.methods],
        }
        for rule in inputs
    ]
    return [*of_weights, *of_inputs]


def _as_written(globs: str | tuple[str, ...]) -> str | list[str]:
    return globs if isinstance(globs, str) else list(globs)


def recipe_fields(text: str) -> dict[str, Any]:
    """What `Recipe` is made of, from the content of a TOML file."""
    document = read_toml(text, "the recipe")
    _check_document(document)
    fields = {key: document[key] for key in KEYS if key in document}
    tables = fields.pop("rules")
    fields["rules"] = tuple(_rule(t) for t in tables if "activations" not in t)
    fields["inputs"] = tuple(_input_rule(t) for t in tables if "activations" in t)
    return fields


def _check_document(document: Mapping[str, Any]) -> None:
    if "compensation" in document:
        raise ValueError(
            "a recipe with [compensation] is for tersify compress-lm; rules are what training needs"
        )
    _check_keys("a recipe", document, KEYS)
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


def _rule(table: Mapping[str, Any]) -> Rule:
    _check_keys("a rule", table, ["weights", "activations", "methods"])
    methods = _method_tables(table, "ternary")
    return Rule(
        weights=table.get("weights", "*"), methods=tuple(map(from_table, methods))
    )


def _input_rule(table: Mapping[str, Any]) -> InputRule:
    _check_keys("a rule for activations", table, ["activations", "methods"])
    methods = _method_tables(table, "uniform")
    return InputRule(
        activations=table["activations"],
        methods=tuple(map(input_from_table, methods)),
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
