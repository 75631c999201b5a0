"""The queue of benchmarks/gpu_queue.py: order, what waits for what, what is brought and
put back.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import gpu_queue  # noqa: E402


@pytest.mark.parametrize("name", ["papers", "papers-more", "papers-rest", "tiny"])
def test_every_row_of_a_ready_queue_exists_and_needs_only_rows_of_the_queue(name):
    runs = gpu_queue.read_queue(ROOT / "benchmarks" / "queues" / f"{name}.txt")
    assert len(runs) == len(set(runs)) > 20
    for run in runs:
        assert run.row in [row.id for row in gpu_queue.load(run, smoke=False).rows]
        wanted = {
            (need.experiment, need.row, need.seed)
            for need in gpu_queue.needs(run, smoke=False)
        }
        assert wanted <= {(r.experiment, r.row, r.seed) for r in runs}


def test_a_line_that_is_no_run_is_told_with_its_number(tmp_path):
    queue = tmp_path / "queue.txt"
    queue.write_text("ternary-table1 literal 1\nternary-table2 best x\n")
    with pytest.raises(
        ValueError, match=r"line 2 of .*queue.txt must be EXPERIMENT ROW SEED,SEED"
    ):
        gpu_queue.read_queue(queue)


@pytest.mark.long
def test_a_queue_that_ran_out_of_time_goes_on_elsewhere_with_what_was_brought(tmp_path):
    queue = tmp_path / "queue.txt"
    queue.write_text(
        "# a start and what starts from it\nternary-table2 fp20 1\nternary-table2 ttq 1\n"
    )

    def call(name, *extra):
        script = str(ROOT / "benchmarks" / "gpu_queue.py")
        where = [
            "--out",
            str(tmp_path / name),
            "--bring",
            str(tmp_path / f"{name}-brought"),
        ]
        done = subprocess.run(
            [
                sys.executable,
                script,
                str(queue),
                "--smoke",
                "--abreast",
                "2",
                *where,
                *extra,
            ],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads((tmp_path / f"{name}-brought" / "queue.json").read_text())

    nothing = call("first", "--minutes", "0")
    assert not nothing["finished"]
    assert set(nothing["unfinished"].values()) == {"starting"}
    first = call("first", "--minutes", "4")
    assert set(first["finished"]) == {
        "ternary-table2/fp20/seed-1",
        "ternary-table2/ttq/seed-1",
    }
    second = call(
        "second", "--minutes", "0", "--restore", str(tmp_path / "first-brought")
    )
    assert second["finished"] == first["finished"]
