"""`file.py:function`: a piece of the user's own code, named on a command line."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tersify.lab.names import unknown


def names_function(text: str) -> bool:
    return ".py:" in text


def load_function(text: str) -> Callable[..., Any]:
    """The function that `file.py:function` names. Its file runs, with its own folder importable."""
    file, _, name = text.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"{text!r} names the file {file!r}, which does not exist; write PATH/file.py:function")
    spec = importlib.util.spec_from_file_location(f"tersify_user_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles of the user's classes look their module up by name.
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    functions = {key: value for key, value in vars(module).items() if callable(value) and not key.startswith("_")}
    if name not in functions:
        raise unknown(f"function of {file!r}", name, functions)
    return functions[name]
