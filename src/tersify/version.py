"""The version, whose one source is pyproject.toml."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from pathlib import Path

from tersify.toml import read_toml


@cache
def version() -> str:
    """Of this checkout, else of the installed package, which was built from the same
    file.
    """
    # A checkout comes first: it may lie on the path beside an older installation.
    project = Path(__file__).parent.parent.parent / "pyproject.toml"
    if project.is_file():
        found = read_toml(project.read_text(encoding="utf-8"), str(project)).get(
            "project", {}
        )
        if found.get("name") == "tersify":
            return str(found["version"])
    return metadata.version("tersify")
