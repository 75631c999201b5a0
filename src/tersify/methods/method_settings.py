"""The settings of a method as a TOML table: read, checked and written."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

# The types that TOML has for a setting. A whole number may stand for a number, but true
# and false are no numbers, though Python counts them among its whole ones.
KINDS: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
}


def table_of(method: Any) -> dict[str, Any]:
    """Its name and every field that differs from the default."""
    changed = {
        f.name: getattr(method, f.name)
        for f in fields(method)
        if getattr(method, f.name) != f.default
    }
    return {"method": method.name, **changed}


def made_from_table(
    table: Mapping[str, Any], known_methods: Mapping[str, Any], what: str
) -> Any:
    """The method of `known_methods` that the table names, with the table's settings."""
    settings = dict(table)
    name = settings.pop("method", None)
    if not isinstance(name, str) or name not in known_methods:
        raise ValueError(
            f"unknown {what} {name!r}; {nearest(str(name), known_methods)}"
        )
    cls = known_methods[name]
    known = [f.name for f in fields(cls)]
    # Names first, so that a misspelt setting is told before a wrong value of another.
    for key in settings:
        if key not in known:
            raise ValueError(
                f"method {name!r} has no setting {key!r}; {nearest(key, known)}"
            )
    for key, value in settings.items():
        check_setting(cls, key, value)
    return cls(**settings)


def check_setting(method: Any, name: str, value: object) -> None:
    """A value from TOML against the annotation of the field it is for."""
    (spec,) = (spec for spec in fields(method) if spec.name == name)
    # With `from __future__ import annotations` a field's type is its text; outside
    # methods may hold the class.
    annotation = spec.type.__name__ if isinstance(spec.type, type) else str(spec.type)
    if _is_for_python_alone(annotation, value):
        return
    wanted = [kind for kind in annotation.split(" | ") if kind in KINDS]
    # An annotation without a TOML type, such as a tuple of an outside method, is left
    # to that method's own `__post_init__`.
    if wanted and not any(_is_of_kind(kind, value) for kind in wanted):
        raise ValueError(
            f"{method.name}: {name} must be {' or '.join(wanted)}, got {value!r}"
        )


def _is_for_python_alone(annotation: str, value: object) -> bool:
    """None and functions, which no TOML can hold."""
    if value is None:
        return "None" in annotation
    return callable(value) and "Callable" in annotation


def _is_of_kind(kind: str, value: object) -> bool:
    # bool first: in Python True is an int, and `bits = true` must not pass as 1.
    if isinstance(value, bool):
        return kind == "bool"
    return isinstance(value, KINDS[kind])


MOST_NAMES = 30


def nearest(word: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    """The remedy half of an error: the nearest known names, or all of them."""
    # 0.5 is a looser cutoff than difflib's 0.6: short names with one wrong letter still
    # match.
    close = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    if close:
        return "nearest: " + ", ".join(map(repr, close))
    shown = sorted(known)[:MOST_NAMES]
    more = f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else ""
    return f"known: {', '.join(shown)}{more}" if shown else "there is none"
