"""`file.py:function`: how recipes and commands name a user's own function."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def names_function(text: str) -> bool:
    return ".py:" in text


def refuse_bare_file(text: str) -> None:
    """A file alone does not say which of its functions is meant."""
    if text.endswith(".py"):
        raise ValueError(f"{text!r} names no function; write {text}:FUNCTION")


def load_function(text: str) -> Callable[..., Any]:
    """The function that `file.py:function` names. Runs the file: only for files the
    user wrote.

    The file may import its neighbours, as a script may.
    """
    path_text, _, name = text.rpartition(":")
    path = Path(path_text)
    if not path.is_file():
        raise ValueError(
            f"{text!r} names the file {path_text!r}, which does not exist; write path/to/file.py:function"
        )
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
    except Exception as error:  # whatever the user's code raises is the user's to mend
        raise ValueError(
            f"{path_text!r} cannot be loaded: {described(error, path)}"
        ) from error
    finally:
        sys.path.remove(folder)
    function = getattr(module, name, None)
    if not callable(function):
        own = [
            key
            for key, value in vars(module).items()
            if getattr(value, "__module__", None) == module.__name__
        ]
        there = f"it has {', '.join(map(repr, own))}" if own else "it defines none"
        raise ValueError(f"{path_text!r} has no function {name!r}; {there}")
    return function


def call_function(text: str, **options: Any) -> Any:
    """What the function that `file.py:function` names returns; whatever it raises
    becomes one sentence.
    """
    function = load_function(text)
    try:
        return function(**options)
    except Exception as error:
        given = f" with the options {', '.join(options)}" if options else ""
        problem = described(error, Path(text.rpartition(":")[0]))
        raise ValueError(f"{text!r} failed{given}: {problem}") from error


def described(error: Exception, path: Path) -> str:
    """Kind, message and, where it is known, the line of the user's file."""
    frames = traceback.extract_tb(error.__traceback__)
    # The last frame in the user's file is where the error arose, as far as they can
    # see.
    lines = [
        frame.lineno for frame in frames if frame.filename == os.path.abspath(path)
    ]
    line = lines[-1] if lines else getattr(error, "lineno", None)
    place = f" (line {line})" if line else ""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}{place}"
