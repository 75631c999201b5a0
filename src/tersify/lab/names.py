"""What a name that nobody knows should have been."""

from __future__ import annotations

from collections.abc import Iterable

from tersify.methods import nearest


def unknown(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a name outside `known`: it names the nearest, or else all there are."""
    return ValueError(f"unknown {kind} {name!r}; {nearest(name.lower(), sorted(known))}")
