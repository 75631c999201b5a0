"""The compiled kernels, and the instruction set they use."""

from __future__ import annotations

import importlib
import os
import warnings
from functools import lru_cache
from types import ModuleType

ISA_VARIABLE = "TERSIFY_ISA"


@lru_cache(maxsize=1)
def extension() -> ModuleType | None:
    """The compiled kernels, or None after one warning."""
    try:
        return importlib.import_module("tersify._runtime")
    except ImportError as error:
        warnings.warn(
            f"tersify's compiled kernels are missing ({error}); plans run in plain torch. "
            "Reinstall tersify with a C++ compiler at hand.",
            RuntimeWarning,
            stacklevel=3,
        )
        return None


def chosen_isa(module: ModuleType) -> str:
    """The best instruction set of this CPU, or the one that TERSIFY_ISA names."""
    names: list[str] = module.isas()
    wanted = os.environ.get(ISA_VARIABLE)
    if not wanted:
        return names[-1]
    if wanted not in names:
        raise ValueError(
            f"{ISA_VARIABLE}={wanted!r}: this CPU has kernels for {', '.join(names)}"
        )
    return wanted
