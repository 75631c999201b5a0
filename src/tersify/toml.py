"""TOML in and out. Reading is tomllib's; writing covers what recipes need: scalars,
lists and tables.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(text: str, what: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{what} is not valid TOML: {error}") from None


def write_toml(document: Mapping[str, Any], *, functions: bool = False) -> str:
    """`functions` writes a Python function as its name instead of refusing it."""
    if functions:
        document = _named(document)
    # Plain keys first: behind a [section] they would belong to it.
    lines = [
        f"{_key(key)} = {_value(value)}"
        for key, value in document.items()
        if not _is_section(value)
    ]
    for key, value in document.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{_key(key)}]", *_body(value)]
        elif _is_section(value):
            for table in value:
                lines += ["", f"[[{_key(key)}]]", *_body(table)]
    return "\n".join(lines).lstrip("\n") + "\n"


def _named(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _named(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(_named, value))
    return f"{value.__module__}:{value.__qualname__}" if callable(value) else value


def _is_section(value: object) -> bool:
    is_tables = (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, Mapping) for item in value)
    )
    return isinstance(value, Mapping) or is_tables


def _body(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_value(value)}" for key, value in table.items()]


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _value(key)


def _value(value: object) -> str:
    # Before int: True is one.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        # repr gives the shortest text that reads back as the same float; TOML writes
        # inf and nan as Python does.
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        # JSON allows a bare DEL, TOML does not
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, Mapping):
        return (
            "{ "
            + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items())
            + " }"
        )
    raise ValueError(
        f"{value!r} cannot be written as TOML; name a function as 'file.py:function'"
    )
