"""The tools that look at the tree itself."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def output_of(*arguments):
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_drawn_lines_hide_their_path_until_the_same_seed_is_asked_for_answers():
    drawn, again, other = (
        output_of("tools/lines.py", "--seed", seed) for seed in ("3", "3", "4")
    )
    assert drawn == again != other
    lines = drawn.splitlines()
    assert len(lines) == 25
    answers = output_of("tools/lines.py", "--seed", "3", "--answers").splitlines()
    assert answers[::2] == lines
    for line, answer in zip(lines, answers[1::2], strict=True):
        path, number = answer.split()[0].rsplit(":", 1)
        assert path not in line
        assert (ROOT / path).read_text(encoding="utf-8").splitlines()[
            int(number) - 1
        ].strip() in line


def test_a_drawn_line_comes_with_its_statement_but_without_the_block_below_it():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import lines
    finally:
        sys.path.pop(0)
    source = "def f(\n    a,\n    b,\n):\n    return g(\n        a,\n    )\n"
    whole = lines.statements(source)
    cut = source.splitlines()
    assert lines.shown(cut, 2, whole[2]) == "def f( a, b, ):"
    assert lines.shown(cut, 6, whole[6]) == "return g( a, )"
    long = [f"{i}," for i in range(20)]
    assert lines.shown(long, 10, range(1, 21)) == "7, 8, 9, 10, 11,"


def test_the_package_is_no_denser_in_branches_than_it_was():
    assert "branches per 100 lines" in output_of("tools/branches.py", "--most", "0")


def test_a_branch_is_counted_wherever_it_stands(tmp_path, monkeypatch):
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import branches
    finally:
        sys.path.pop(0)
    monkeypatch.setattr(branches, "ROOT", tmp_path)
    source = tmp_path / "some.py"
    source.write_text(
        "class A:\n    def f(self, x):\n        if x and x or 1:\n            return [y for y in x if y]\n"
    )
    (found,) = branches.functions_in(source)
    assert (found.name, found.lines, found.branches) == ("f", 3, 4)


MOST_LINES = 350


def test_no_source_is_longer_than_a_reader_takes_in_at_once():
    files = [
        path
        for folder in ("src", "csrc")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".cpp", ".hpp")
    ]
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in files
    }
    assert not {name for name, count in lengths.items() if count > MOST_LINES}
