"""The one error a collection can raise."""

from __future__ import annotations


class CollectionError(ValueError):
    """The collection is empty, incomplete, damaged, or of a version this program does
    not know.
    """
