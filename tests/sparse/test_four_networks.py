"""The collection of pruned VGG-16, ResNet-18, LSTM and MiniLM, as the benchmark builds
and checks it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "collection.py"


@pytest.mark.slow
def test_the_four_networks_reload_round_trip_run_and_are_read_by_others(tmp_path):
    pytest.importorskip("binsparse")
    pytest.importorskip("sparse")
    command = [
        sys.executable,
        str(BENCHMARK),
        "--quick",
        "--json",
        str(tmp_path / "figures.json"),
    ]
    subprocess.run([*command, "--out", str(tmp_path / "four")], check=True)
    figures = json.loads((tmp_path / "figures.json").read_text())["figures"]
    assert figures["open_seconds"] < 1
    assert figures["operations"] >= 39  # and 36 more of MiniLM, where it is installed
    assert figures["backend_runs"] == 12 * figures["operations"]
    assert figures["formats_round_trips"] == 16 * figures["operations"]
    assert figures["read_by_scipy_and_binsparse"] == figures["operations"]
    assert figures["worst_error_of_tolerance"] < 1
