"""What the documentation site gets while it is built: every command with its flags, and
the list of records.

MkDocs calls `on_page_markdown` (see mkdocs.yml). Both are made anew each time, so they
cannot be out of date.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COMMANDS, RECORDS = "<!-- commands -->", "<!-- records -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, commands())
    if RECORDS in markdown:
        markdown = markdown.replace(RECORDS, records())
    return "\n".join(
        unbroken(line) if line.startswith("|") else line
        for line in markdown.splitlines()
    )


def unbroken(row: str) -> str:
    """A narrow column must not part a number from its sign."""
    return re.sub(r"(?<=\d) %", "\u00a0%", row)


def commands() -> str:
    """A section for each command: what it does, its arguments and its flags."""
    import typer

    from tersify.cli.app import app

    root: Any = typer.main.get_command(app)
    found: dict[str, Any] = {}
    for name, command in sorted(root.commands.items()):
        inner = getattr(command, "commands", None)
        found |= (
            {f"{name} {sub}": inner[sub] for sub in inner} if inner else {name: command}
        )
    return "\n\n".join(section(name, command) for name, command in found.items())


def section(name: str, command: Any) -> str:
    arguments = [
        parameter
        for parameter in command.params
        if parameter.param_type_name == "argument"
    ]
    options = [
        parameter
        for parameter in command.params
        if parameter.param_type_name == "option"
    ]
    usage = " ".join(
        [
            "tersify",
            name,
            *(argument.name.upper() for argument in arguments),
            "[OPTIONS]",
        ]
    )
    lines = [
        f"## `tersify {name}`",
        "",
        command.help.strip(),
        "",
        f"```text\n{usage}\n```",
        "",
    ]
    rows = [(argument.name.upper(), argument, "required") for argument in arguments]
    rows += [
        (
            ", ".join(map(code, [*option.opts, *option.secondary_opts])),
            option,
            default(option),
        )
        for option in options
    ]
    if rows:
        lines += ["| | | default |", "|---|---|---|"]
        lines += [
            f"| {told} | {text(parameter)} | {value} |"
            for told, parameter, value in rows
        ]
    return "\n".join(lines)


def code(word: str) -> str:
    return f"`{word}`"


def text(parameter: Any) -> str:
    return " ".join((getattr(parameter, "help", None) or "").split()).replace(
        "|", "\\|"
    )


def default(option: Any) -> str:
    if option.required:
        return "required"
    value = option.default
    if value in (None, False, (), []) or callable(value):
        return ""
    return code("yes" if value is True else str(value))


def records() -> str:
    folder = str(ROOT / "results")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module("files").records()
