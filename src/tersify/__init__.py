"""Tersify: few weights, few bits, small files, fast CPU inference.

Names are imported when first used, so a program that only loads and runs a file never
imports the training half, and the command line answers at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tersify.lazy_modules import submodule

if TYPE_CHECKING:
    from tersify.codec import TerseFileError as TerseFileError
    from tersify.codec import open as open
    from tersify.codec import pack as pack
    from tersify.loading import load as load
    from tersify.methods import Method as Method
    from tersify.methods import Transform as Transform
    from tersify.methods import register as register
    from tersify.post_training import compress_ as compress_
    from tersify.recipe import Recipe as Recipe
    from tersify.recipe import Rule as Rule
    from tersify.runtime import compile as compile
    from tersify.saving import save as save
    from tersify.session import Session as Session
    from tersify.session import attach as attach
    from tersify.shrinking import shrink as shrink
    from tersify.sparse import Collection as Collection
    from tersify.sparse import collect as collect
    from tersify.tensor import CompressedModel as CompressedModel
    from tersify.tensor import CompressedTensor as CompressedTensor

    __version__: str

_HOMES = {
    "attach": "session",
    "compress_": "post_training",
    "Session": "session",
    "Recipe": "recipe",
    "Rule": "recipe",
    "Method": "methods",
    "Transform": "methods",
    "register": "methods",
    "CompressedTensor": "tensor",
    "CompressedModel": "tensor",
    "save": "saving",
    "load": "loading",
    "open": "codec",
    "pack": "codec",
    "TerseFileError": "codec",
    "compile": "runtime",
    "shrink": "shrinking",
    "collect": "sparse",
    "Collection": "sparse",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from tersify.version import version

        return version()
    if name not in _HOMES:
        return submodule("tersify", name)
    return getattr(importlib.import_module(f"tersify.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
