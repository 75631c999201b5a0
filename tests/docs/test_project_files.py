"""The files around the code keep to the forms that tools and people expect of them."""

import re
import shutil
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parent.parent.parent


def read(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_citation_names_the_project_and_the_four_papers():
    found = read("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= found.keys()
    assert found["authors"] == [{"name": "The Tersify developers"}]
    assert len(found["references"]) == 4
    for paper in found["references"]:
        assert paper["title"]
        assert all(
            author["family-names"] and author["given-names"]
            for author in paper["authors"]
        )


def test_hooks_call_tools_that_the_test_environment_has():
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        tool = hook["entry"].split()[0]
        assert shutil.which(tool, path=str(Path(sys.executable).parent)), tool
        assert hook["language"] == "system"


@pytest.mark.parametrize(
    "form",
    sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[bi]*.yml")),
    ids=lambda p: p.stem,
)
def test_issue_forms_have_what_a_form_needs(form):
    found = read(form.relative_to(ROOT))
    assert found["name"]
    assert found["description"]
    ids = [part["id"] for part in found["body"] if part["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 0


def test_the_changelog_keeps_its_form():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert releases[0] == "[Unreleased]"
    assert all(
        re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", release)
        for release in releases[1:]
    )
    kinds = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_what_must_be_there_is_there():
    for name in (
        "LICENSE",
        "SECURITY.md",
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        ".github/PULL_REQUEST_TEMPLATE.md",
    ):
        assert (ROOT / name).read_text(encoding="utf-8").strip(), name
