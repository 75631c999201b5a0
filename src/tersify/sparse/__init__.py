"""The sparse tensor collection: real operations of pruned networks, stored, reloaded
and run.

Names are imported when first used: opening a collection needs numpy only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tersify.sparse.backends import BACKENDS as BACKENDS
    from tersify.sparse.collection import Collection as Collection
    from tersify.sparse.collection import Operation as Operation
    from tersify.sparse.collection_error import CollectionError as CollectionError
    from tersify.sparse.collection_writer import collect as collect
    from tersify.sparse.formats import FORMATS as FORMATS
    from tersify.sparse.formats import Matrix as Matrix

_HOMES = {
    "BACKENDS": "backends",
    "Collection": "collection",
    "CollectionError": "collection_error",
    "FORMATS": "formats",
    "Matrix": "formats",
    "Operation": "collection",
    "collect": "collection_writer",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'tersify.sparse' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tersify.sparse.{_HOMES[name]}"), name)
