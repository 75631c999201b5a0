"""The recipes that come with Tersify."""

from __future__ import annotations

from pathlib import Path

from tersify.methods import nearest

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
    here = Path(__file__).parent.parent
    for folder in (here / "recipes", here.parent.parent / "recipes"):
        if folder.is_dir():
            return sorted(folder.glob("*.toml"))
    return []


def recipe_file(source: str | Path) -> Path:
    """The file that is meant: one of the user's, or a ready recipe by its name, with or
    without its folder.
    """
    path = Path(source)
    if path.is_file():
        return path
    ready = {p.stem: p for p in ready_recipes()}
    found = ready.get(path.stem)
    # A mistyped path such as other/ternary-log.toml must not quietly become the ready
    # recipe.
    if found is None or path not in (Path(path.stem), Path("recipes") / found.name):
        if str(source) in (language.stem for language in language_recipes()):
            raise ValueError(
                f"recipe {str(source)!r} is for language models: tersify compress-lm MODEL --recipe {source}"
            )
        raise ValueError(
            f"no recipe file {str(source)!r}, nor a ready recipe of that name; {nearest(path.stem, ready)}"
        )
    return found
