"""What the documents call by its full name is there after `import tersify`, as they write
it.
"""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAME = re.compile(r"(?<![\w.\-/])tersify(?:\.[A-Za-z_]\w*)+(?![\w\-/])")
# Each name in a process of its own, where nothing else was imported before.
PROGRAM = """
import functools, os, sys
import torch, tersify
missing = []
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            functools.reduce(getattr, name.split(".")[1:], tersify)
        except BaseException as error:
            print(name, repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    missing += [name] if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) else []
sys.exit(len(missing))
"""
INTEGRATIONS = {
    "hf": "transformers",
    "hf_quantizer": "transformers",
    "lightning": "lightning",
    "accelerate": "accelerate",
}


def names():
    """Not the names of files, such as tersify.h."""
    found = set()
    for document in DOCUMENTS:
        found |= set(NAME.findall(document.read_text(encoding="utf-8")))
    return sorted(name for name in found if name not in ("tersify.h", "tersify.hpp"))


def library_of(name):
    parts = name.split(".")
    return INTEGRATIONS.get(parts[2]) if parts[1] == "integrations" else None


def missing_of(asked):
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, *asked],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode in range(len(asked) + 1), run.stderr
    return run.stdout


def test_every_name_in_the_documents_is_found_after_a_plain_import():
    asked = [
        name for name in names() if name.count(".") < 2 or library_of(name) is None
    ]
    assert "tersify.lab.trainer.train" in asked
    assert missing_of(asked) == ""


@pytest.mark.parametrize("library", sorted(set(INTEGRATIONS.values())))
def test_the_line_for_a_training_loop_of_others_works_as_it_is_printed(library):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")
    asked = [n for n in names() if n.count(".") > 1 and library_of(n) == library]
    assert asked
    assert missing_of(asked) == ""


def test_a_name_that_is_not_there_is_an_attribute_error_and_one_of_a_missing_library_is_not():
    import tersify

    with pytest.raises(AttributeError, match="has no attribute 'trane'"):
        _ = tersify.trane
    with pytest.raises(AttributeError, match=r"tersify.lab.*'trane'"):
        _ = tersify.lab.trane
    assert not hasattr(tersify.integrations, "keras")
