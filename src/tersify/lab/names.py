"""The error for an unknown name, which suggests the nearest known ones, and the check
that raises it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


def unknown(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a name outside `known`: it names the nearest, or else all there
    are.
    """
    # training, which those who only load a network do not need
    from tersify.methods import nearest

    return ValueError(
        f"unknown {kind} {name!r}; {nearest(name.lower(), sorted(known))}"
    )


def check_known(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    """The first of the names that is not known is the error."""
    for name in names:
        if name not in known:
            raise unknown(kind, name, known)
