"""Every python and console block of the README and of docs/ runs, in an empty folder,
and prints what the page says.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

from tersify.methods import registry

ROOT = Path(__file__).parent.parent.parent
KINDS = ("```python\n", "```console\n")
# What the README's reader brings along.
MINE = """
import torch
from torch import nn

loader = [(torch.randn(16, 3, 12, 12), torch.randint(0, 10, (16,))) for _ in range(4)]


def MyNet():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(800, 10))
"""


def runner():
    spec = importlib.util.spec_from_file_location(
        "run_page", ROOT / "tools" / "run_page.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


def documents():
    """Every page with code; tutorials train networks."""
    pages = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    return [
        pytest.param(
            page, marks=[pytest.mark.long] if page.parent.name == "tutorials" else []
        )
        for page in pages
        if any(kind in page.read_text(encoding="utf-8") for kind in KINDS)
    ]


@pytest.mark.parametrize(
    "document",
    documents(),
    ids=lambda page: str(page.relative_to(ROOT).with_suffix("")),
)
def test_code_in_the_document_runs_and_prints_what_it_says(
    document, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # a tutorial's method stays its own
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    text, pages = document.read_text(encoding="utf-8"), runner()
    assert len(list(pages.blocks(text))) == sum(text.count(kind) for kind in KINDS)
    for block, printed in pages.run(text, tmp_path, document.stem):
        if block.told is not None:
            assert pages.unlike(block.told, printed) is None, pages.unlike(
                block.told, printed
            )


def test_a_page_that_says_something_else_is_noticed(tmp_path):
    pages = runner()
    text = "```python\nprint('98.4 % right')\n```\n\n```text\n97.9 % right\n```\n\n"
    text += "```console\n$ echo 12 bytes\n20 bytes\n```\n"
    said = [
        pages.unlike(block.told, printed)
        for block, printed in pages.run(text, tmp_path)
    ]
    assert said[0] is None, "training ends elsewhere on another machine"
    assert "the page says 20, and 12 was printed" in said[1]
    assert "and this was printed" in pages.unlike("1 byte", "1 bit")


def test_a_command_that_fails_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match="ended with 3"):
        list(runner().run("```console\n$ exit 3\n```\n", tmp_path))
