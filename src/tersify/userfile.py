"""`file.py:function`: how recipes and commands name a user's own function."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def names_function(text: str) -> bool:
    return ".py:" in text


def load_function(text: str) -> Callable[..., Any]:
    """The function that `file.py:function` names. Runs the file: only for files the user wrote.

    The file may import its neighbours, as a script may.
    """
    path_text, _, name = text.rpartition(":")
    path = Path(path_text)
    if not path.is_file():
        raise ValueError(f"{text!r} names the file {path_text!r}, which does not exist; write path/to/file.py:function")
    spec = importlib.util.spec_from_file_location(f"tersify_user_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles of the user's classes look their module up by name.
    sys.modules[spec.name] = module
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{path_text!r} has no function {name!r}")
    return function
