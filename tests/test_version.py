import re
from importlib import metadata
from pathlib import Path

import tersify
from tersify import version

ROOT = Path(__file__).parent.parent


def test_the_version_is_that_of_the_project_file():
    (written,) = re.findall(
        r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert tersify.__version__ == written
    assert "__version__" in dir(tersify)


def test_no_other_file_repeats_it():
    places = [
        ROOT / "CMakeLists.txt",
        ROOT / "CITATION.cff",
        *(ROOT / "src" / "tersify").glob("*.py"),
    ]
    written = f'"{tersify.__version__}"'
    assert [
        path.name for path in places if written in path.read_text(encoding="utf-8")
    ] == []


def test_an_installed_package_asks_its_metadata(tmp_path, monkeypatch):
    monkeypatch.setattr(
        version,
        "__file__",
        str(tmp_path / "lib" / "site-packages" / "tersify" / "version.py"),
    )
    monkeypatch.setattr(metadata, "version", lambda name: f"7.8.9 of {name}")
    assert version.version.__wrapped__() == "7.8.9 of tersify"
    (tmp_path / "lib" / "pyproject.toml").parent.mkdir()
    (tmp_path / "lib" / "pyproject.toml").write_text(
        '[project]\nname = "somebody-else"\nversion = "1"\n'
    )
    assert version.version.__wrapped__() == "7.8.9 of tersify"


def test_the_package_tells_type_checkers_that_it_has_types():
    assert (Path(tersify.__file__).parent / "py.typed").is_file()
