"""A network as one C99 source: weights in place, no allocation, one static arena."""

from tersify.export.c.c_folder import export_c

__all__ = ["export_c"]
