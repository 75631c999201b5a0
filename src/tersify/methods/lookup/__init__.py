"""Lookup tables with a virtual bit shift (paper 2): n-bit codes that index a small
table of m-bit values.
"""

from tersify.methods.lookup.lookup import Lookup

__all__ = ["Lookup"]
