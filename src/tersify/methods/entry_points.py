"""Methods that installed packages offer by the entry point `tersify.methods`, imported
when a recipe names them.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

GROUP = "tersify.methods"


def offered() -> list[str]:
    """The names of all methods on offer; nothing is imported."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def load_offered(name: str) -> Any:
    """What the package that offers `name` calls its method; None where no package does."""
    entries = {entry.value: entry for entry in entry_points(group=GROUP, name=name)}
    if not entries:
        return None
    if len(entries) > 1:
        packages = " and ".join(sorted(map(_package, entries.values())))
        raise ValueError(
            f"method {name!r} is offered by {packages}; uninstall all but one"
        )
    (entry,) = entries.values()
    try:
        return entry.load()
    except Exception as error:  # somebody else's package: whatever it raises
        raise ValueError(
            f"method {name!r} of {_package(entry)} cannot be imported from {entry.value!r} "
            f"({type(error).__name__}: {error}); repair or uninstall the package"
        ) from error


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value.partition(":")[0]
