"""The page of recipes has every setting with its default, and every ready recipe; two
methods have their own pages.
"""

import dataclasses
import re
from pathlib import Path

import pytest

from tersify.lab.trainer import TrainConfig
from tersify.methods import registered
from tersify.methods.inputs import registered_inputs
from tersify.recipe import ready_recipes
from tersify.toml import write_toml

DOCS = Path(__file__).parent.parent.parent / "docs"
WHOLE_PAGE = (DOCS / "reference" / "recipes.md").read_text(encoding="utf-8")
# Methods for weights and for activations may share a name.
ACTIVATIONS = WHOLE_PAGE.partition("## Activations\n")[2].partition("\n## ")[0]
PAGE = WHOLE_PAGE.replace(ACTIVATIONS, "")
OWN_PAGES = {"prune": "how-to/prune.md", "energy": "how-to/search-a-sub-network.md"}


def table_rows(text):
    """(method or '', settings, defaults) of each line "| `method`: `a`, `b` | `1`, none
    | meaning |".
    """
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3 and "`" in cells[0]:
            method, _, settings = cells[0].rpartition(": ")
            yield (
                method.strip("`"),
                re.findall(r"`(\w+)`", settings),
                re.findall(r"`(.*?)`|(none|–)", cells[1]),
            )


def documented(method, page=PAGE):
    """The settings of a method, or of training, with their defaults as the page writes
    them.
    """
    heading = "## Training\n" if method == "train" else f"### `{method}`\n"
    section = page.partition(heading)[2].partition("\n##")[0]
    found = {}
    for name, settings, defaults in table_rows(section or page):
        if name == ("" if section else method):
            found |= dict(
                zip(
                    settings, (quoted or word for quoted, word in defaults), strict=True
                )
            )
    return found


def written(default):
    if default in (None, dataclasses.MISSING):
        return "none" if default is None else "–"
    return (
        write_toml({"x": list(default) if isinstance(default, tuple) else default})
        .removeprefix("x = ")
        .strip()
    )


def settings(kind):
    made = {
        spec.name: {}
        if spec.default_factory is not dataclasses.MISSING
        else spec.default
        for spec in dataclasses.fields(kind)
    }
    return {
        name: "{}" if default == {} else written(default)
        for name, default in made.items()
    }


@pytest.mark.parametrize("method", sorted(set(registered()) - set(OWN_PAGES)))
def test_the_page_tells_every_setting_of_a_method_with_its_default(method):
    assert f"`{method}`" in PAGE
    assert documented(method) == settings(registered()[method])


@pytest.mark.parametrize("method", sorted(registered_inputs()))
def test_the_page_tells_every_setting_of_an_activation_method_with_its_default(method):
    assert f"`{method}`" in ACTIVATIONS
    assert documented(method, ACTIVATIONS) == settings(registered_inputs()[method])


def test_the_page_tells_every_setting_of_training_with_its_default():
    assert documented("train") == settings(TrainConfig)


@pytest.mark.parametrize("method", OWN_PAGES)
def test_a_page_of_its_own_names_every_setting(method):
    page = (DOCS / OWN_PAGES[method]).read_text(encoding="utf-8")
    missing = [
        name
        for name in settings(registered()[method])
        if not re.search(rf"`{name}\b", page)
    ]
    assert missing == []


def test_the_page_names_every_ready_recipe_and_no_other():
    section = PAGE.partition("## Ready recipes\n")[2].partition("\n## ")[0]
    named = [
        name
        for line in section.splitlines()
        for name in re.findall(r"`([\w-]+)`", line.split("|")[1] if "|" in line else "")
    ]
    assert sorted(named) == sorted(path.stem for path in ready_recipes())
