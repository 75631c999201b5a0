"""The sparse tensor collection: real operations of pruned networks, stored, reloaded and run."""

from tersify.sparse.backends import BACKENDS
from tersify.sparse.collection import Collection, Operation
from tersify.sparse.errors import CollectionError
from tersify.sparse.formats import FORMATS, Matrix
from tersify.sparse.writer import collect

__all__ = ["BACKENDS", "FORMATS", "Collection", "CollectionError", "Matrix", "Operation", "collect"]
