"""Writes the TOML that recipes need: scalars, lists, tables and lists of tables. Reading is tomllib's."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def write_toml(document: Mapping[str, Any]) -> str:
    lines = [f"{key} = {_value(value)}" for key, value in document.items() if not _is_section(value)]
    for key, value in document.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{key}]", *_body(value)]
        elif _is_section(value):
            for table in value:
                lines += ["", f"[[{key}]]", *_body(table)]
    return "\n".join(lines).lstrip("\n") + "\n"


def _is_section(value: object) -> bool:
    is_tables = isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)
    return isinstance(value, Mapping) or is_tables


def _body(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in table.items()]


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON allows a bare DEL, TOML does not
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    raise ValueError(f"{value!r} cannot be written as TOML; name a function as 'file.py:function'")
