"""What a name that nobody knows should have been."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LISTED = 20


def unknown(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a name outside `known`: it names the nearest, and all where they are not too many."""
    choices = sorted(known)
    nearest = difflib.get_close_matches(name.lower(), choices, n=1, cutoff=0.5)
    hint = f"; nearest: {nearest[0]!r}" if nearest else ""
    listing = f"; known: {', '.join(choices) or 'none'}" if len(choices) <= LISTED else ""
    return ValueError(f"unknown {kind} {name!r}{hint}{listing}")
