"""Recipes of compensation: a TOML file with a table [compensation], or a ready one by
its name.
"""

from __future__ import annotations

from pathlib import Path

from tersify.compensated.settings import Compensation
from tersify.methods import nearest
from tersify.recipe import language_recipes
from tersify.toml import read_toml


def load_compensation(source: str | Path) -> Compensation:
    """The settings of `source`: a TOML file, or a ready recipe by its name ('lm-3bit')."""
    path = Path(source)
    if not path.is_file():
        ready = {p.stem: p for p in language_recipes()}
        if path.name.removesuffix(".toml") not in ready:
            raise ValueError(
                f"no recipe file {str(source)!r}, nor a ready recipe of that name; {nearest(path.stem, list(ready))}"
            )
        path = ready[path.name.removesuffix(".toml")]
    document = read_toml(path.read_text(encoding="utf-8"), path.name)
    for key in document:
        if key not in ("description", "compensation"):
            raise ValueError(
                f"{path.name}: a recipe of compensation has no key {key!r}; it has [compensation]"
            )
    table = document.get("compensation")
    if not isinstance(table, dict):
        raise ValueError(
            f"{path.name}: a recipe of compensation needs a table [compensation]"
        )
    try:
        return Compensation.of(table)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
