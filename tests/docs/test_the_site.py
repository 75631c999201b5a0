"""The documentation site builds without a warning, and says what the code says."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tersify import codec
from tersify.runtime.portable import read_program

ROOT = Path(__file__).parent.parent.parent


def hooks(name="site"):
    spec = importlib.util.spec_from_file_location(
        f"{name}_hooks", ROOT / "tools" / f"{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_commands_has_every_command_and_flag():
    page = hooks().on_page_markdown("<!-- commands -->")
    assert "## `tersify export fpga`" in page
    assert "| `--max-decoded-bytes` |" in page
    assert "| `--dense-twin`, `--no-dense-twin` |" in page


def test_the_page_of_records_names_each_of_them():
    page = hooks().on_page_markdown("<!-- records -->")
    records = {path.name for path in (ROOT / "results").glob("*.json")} - {"prose.json"}
    assert all(f"| `{name}` |" in page for name in records)


def test_a_number_in_a_table_keeps_its_sign_and_code_stays_as_it_is():
    page = hooks().on_page_markdown("| 88.83 % |\n```text\n88.83 % right\n```")
    assert page == "| 88.83\u00a0% |\n```text\n88.83 % right\n```"


def test_the_page_for_browsers_is_linked_where_its_module_is_built(monkeypatch):
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    pages = hooks("browser_page")
    page = SimpleNamespace(file=SimpleNamespace(src_uri="how-to/without-python.md"))
    monkeypatch.setattr(pages, "is_built", lambda: True)
    told = pages.on_page_markdown(pages.LINK, page=page)
    assert "(../run/page/index.html?terse=../resnet20-star.terse)" in told
    monkeypatch.setattr(pages, "is_built", lambda: False)
    assert "without the module" in pages.on_page_markdown(pages.LINK, page=page)


def test_the_network_of_the_page_has_a_plan_and_names_its_classes(tmp_path):
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    pages = hooks("browser_page")
    path = tmp_path / "net.terse"
    path.write_bytes(pages.with_plan(pages.EXAMPLE))
    program = read_program(codec.open(path))
    assert program.labels[6] == "frog"
    assert (len(program.mean), len(program.std)) == (3, 3)


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("material", reason="the extra `docs` is not installed")
    pytest.importorskip("mkdocstrings", reason="the extra `docs` is not installed")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-q",
        "-d",
        str(tmp_path / "site"),
    ]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    python = (tmp_path / "site" / "reference" / "python" / "index.html").read_text(
        encoding="utf-8"
    )
    assert "steps_per_epoch" in python
    assert (tmp_path / "site" / "gallery" / "report.html").is_file()
    page = tmp_path / "site" / "run" / "page" / "index.html"
    assert page.is_file() == (ROOT / "packages" / "run" / "tersify.wasm").is_file()
