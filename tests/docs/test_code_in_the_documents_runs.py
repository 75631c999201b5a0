"""Every python block of the README and of docs/ runs, in order, in an empty folder."""

import re
from pathlib import Path

import pytest

from tersify.methods import base

ROOT = Path(__file__).parent.parent.parent
FENCE = "```python\n"
DOCUMENTS = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if FENCE in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.stem)
def test_code_in_the_document_runs(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(base, "_METHODS", dict(base._METHODS))  # a tutorial's method stays its own
    blocks = re.findall(r"^```python\n(.*?)^```", document.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == document.read_text(encoding="utf-8").count(FENCE)
    names: dict[str, object] = {"__name__": f"document_{document.stem}"}
    for block in blocks:
        exec(compile(block, str(document), "exec"), names)
