"""What the documents tell to type exists: every command with its flags, every TOML
example.
"""

import re
from pathlib import Path

import pytest
import typer

from tersify import Recipe
from tersify.cli.app import app
from tersify.lab.sweep import Sweep

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CALL = re.compile(
    r"\btersify ((?:export )?[a-z]+(?:-[a-z]+)*)\b((?:(?!tersify)[^`\n])*)"
)
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def commands():
    """The flags of every command, by its words."""
    root = typer.main.get_command(app)
    found = {
        name: command
        for name, command in root.commands.items()
        if not hasattr(command, "commands")
    }
    found |= {
        f"export {name}": command
        for name, command in root.commands["export"].commands.items()
    }
    return {
        name: {f for p in found[name].params for f in (*p.opts, *p.secondary_opts)}
        for name in found
    }


def toml_blocks(name):
    return re.findall(
        r"^```toml\n(.*?)^```",
        (ROOT / "docs" / name).read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_every_flag_that_a_document_gives_a_command_exists(document):
    known = commands()
    for words, rest in CALL.findall(
        document.read_text(encoding="utf-8").replace("\\\n", " ")
    ):
        if words in known:
            assert set(FLAG.findall(rest)) <= known[words], f"tersify {words}{rest}"
        else:
            assert not FLAG.findall(rest), f"there is no command {words!r}"


def test_the_example_recipe_is_one():
    (text,) = toml_blocks("reference/recipes.md")
    recipe = Recipe.from_toml(text)
    assert [len(rule.methods) for rule in recipe.rules] == [0, 2]


def test_the_example_sweep_is_one(tmp_path):
    (text,) = toml_blocks("how-to/scale.md")
    (tmp_path / "sweep.toml").write_text(text, encoding="utf-8")
    assert Sweep.load(tmp_path / "sweep.toml").trials == 40
