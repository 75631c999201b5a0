"""Runs the code of a documentation page and holds what it prints against what the page
says.

    python tools/run_page.py docs/tutorials/smaller-cnn.md     writes the outputs anew

Blocks run in order, in one empty folder. Those marked python share their names; one
marked text right behind such a block is what it prints. Lines of a block marked console
that begin with `$ ` are typed into a shell, the others are its answers.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(
    r"^```(?P<kind>python|console)\n(?P<code>.*?)^```\n(?:\n```text\n(?P<printed>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
MINUTES = 5


@dataclass(frozen=True)
class Block:
    kind: str
    code: str
    told: str | None  # what the page says it prints; None where it says nothing
    span: tuple[int, int]


def blocks(text: str) -> Iterator[Block]:
    for found in BLOCK.finditer(text):
        told = "printed" if found["kind"] == "python" else "code"
        yield Block(found["kind"], found["code"], found[told], found.span(told))


def run(text: str, folder: Path, name: str = "page") -> Iterator[tuple[Block, str]]:
    """Every block with what it printed, in a console beside what was typed; `folder` is
    the working directory.
    """
    names: dict[str, object] = {"__name__": f"document_{name}"}
    for block in blocks(text):
        if block.kind == "console":
            yield (
                block,
                "".join(
                    typed(line, folder)
                    for line in block.code.splitlines()
                    if line.startswith("$ ")
                ),
            )
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.code, f"{name}.md", "exec", dont_inherit=True), names)
        yield block, printed.getvalue()


def typed(line: str, folder: Path) -> str:
    """A command with its answer; one that fails is an error."""
    own = Path(sys.executable).parent  # where `tersify` is
    settings = {
        "PATH": f"{own}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "110",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
    done = subprocess.run(
        ["bash", "-c", line[2:]],
        cwd=folder,
        env=os.environ | settings,
        timeout=60 * MINUTES,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(
            f"`{line[2:]}` ended with {done.returncode}: {done.stderr.strip()[-400:]}"
        )
    return f"{line}\n{done.stdout}"


def unlike(told: str, printed: str) -> str | None:
    """How what was printed differs from what is told, if it does: words must agree,
    numbers be near.

    Machines add up in different orders, so training ends elsewhere on each of them.
    """
    said, heard = (" ".join(NUMBER.sub("N", text).split()) for text in (told, printed))
    if said != heard:
        return f"the page says\n{told}\nand this was printed\n{printed}"
    for stated, found in zip(
        NUMBER.findall(told), NUMBER.findall(printed), strict=True
    ):
        a, b = (float(number.replace(",", "")) for number in (stated, found))
        if abs(a - b) > max(3.0, 0.15 * abs(a)):
            return f"the page says {stated}, and {found} was printed in\n{printed}"
    return None


def written_anew(text: str, folder: Path, name: str) -> str:
    told = [
        (block.span, printed)
        for block, printed in run(text, folder, name)
        if block.told is not None
    ]
    for (begin, end), printed in reversed(told):
        text = text[:begin] + printed + text[end:]
    return text


def main() -> None:
    for given in sys.argv[1:]:
        page = Path(given).resolve()
        with (
            tempfile.TemporaryDirectory(prefix="page-") as folder,
            contextlib.chdir(folder),
        ):
            page.write_text(
                written_anew(page.read_text(encoding="utf-8"), Path(folder), page.stem),
                encoding="utf-8",
            )


if __name__ == "__main__":
    main()
