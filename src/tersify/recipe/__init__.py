"""Recipes: which weights get which methods, in Python or TOML."""

from tersify.recipe.ready_recipes import language_recipes, ready_recipes
from tersify.recipe.recipe import Recipe
from tersify.recipe.rules import InputRule, Rule
from tersify.recipe.training_length import training_length

__all__ = [
    "InputRule",
    "Recipe",
    "Rule",
    "language_recipes",
    "ready_recipes",
    "training_length",
]
