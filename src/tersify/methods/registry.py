"""The methods that recipes know by name, our own and those that other packages offer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tersify.methods.base import Method
from tersify.methods.entry_points import GROUP, load_offered, offered
from tersify.methods.method_settings import made_from_table

MethodT = TypeVar("MethodT", bound=type[Method])
_METHODS: dict[str, type[Method]] = {}


def register(name: str) -> Callable[[MethodT], MethodT]:
    """Class decorator: make a method known to recipes.

    Args:
        name: how a recipe calls it, `methods = [{ method = "NAME" }]`.
    """

    def add(cls: MethodT) -> MethodT:
        if _METHODS.get(name, cls).__qualname__ != cls.__qualname__:
            raise ValueError(
                f"a method named {name!r} is registered already: {_METHODS[name].__qualname__}"
            )
        cls.name = name
        _METHODS[name] = cls
        return cls

    return add


def registered() -> Mapping[str, type[Method]]:
    return dict(_METHODS)


def from_table(table: Mapping[str, Any]) -> Method:
    """A method from its TOML table: {method = "ternary", regime = "log", …}."""
    name = table.get("method")
    if isinstance(name, str) and name not in _METHODS:
        _take_offered(name)
    # What others offer and nobody has used yet is known by its name alone.
    known = {**dict.fromkeys(offered()), **_METHODS}
    method = made_from_table(table, known, "method")
    assert isinstance(method, Method)
    return method


def _take_offered(name: str) -> None:
    """Register the method of another package, where one offers it under this name."""
    found = load_offered(name)
    if found is None or name in _METHODS:  # its module may have registered it
        return
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ValueError(
            f"the entry point {name!r} of {GROUP} must name a subclass of Method, got {found!r}"
        )
    register(name)(found)
