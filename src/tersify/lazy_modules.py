"""Modules of a package that are imported when somebody names them: `import tersify` is
quick, and `tersify.lab.trainer.train` works after it.
"""

from __future__ import annotations

import importlib
from types import ModuleType


def submodule(package: str, name: str) -> ModuleType:
    """The module `name` of `package`, for its `__getattr__`."""
    wanted = f"{package}.{name}"
    if not name.startswith("_"):
        try:
            return importlib.import_module(wanted)
        except ModuleNotFoundError as error:
            # A library that the module needs and that is not installed is told as it is.
            if error.name != wanted:
                raise
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
