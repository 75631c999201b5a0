"""What is allowed at a desk and not in CI: extensions that are missing, and examples
that never change.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROGRAM = """
import sys
for name in sys.argv[2:]:
    sys.modules[name] = None
import pytest
sys.exit(pytest.main(["-p", "no:cacheprovider", "-o", "addopts=", sys.argv[1]]))
"""


def run(*missing, ci, random=False, test="test_checks.py"):
    own = ("CI", "TERSIFY_HYPOTHESIS_SEED", "TERSIFY_RANDOM")
    environment = {k: v for k, v in os.environ.items() if k not in own}
    environment |= {"CI": "true"} if ci else {}
    environment |= {"TERSIFY_RANDOM": "1"} if random else {}
    command = [sys.executable, "-c", PROGRAM, str(HERE / test), *missing]
    return subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=HERE.parent,
    )


@pytest.mark.parametrize("missing", ["tersify._runtime", "tersify._codec"])
def test_a_missing_extension_stops_ci(missing):
    done = run(missing, ci=True)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"{missing} is not built, and in CI its tests must run" in done.stderr


def test_a_missing_extension_is_borne_at_a_desk():
    assert run("tersify._runtime", "tersify._codec", ci=False).returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("how", [{"ci": True}, {"ci": False, "random": True}])
def test_a_random_run_draws_other_examples_every_time_and_says_how_to_repeat_them(how):
    outputs = [run(**how).stdout for _ in range(2)]
    seeds = {
        re.search(r"repeat with --hypothesis-seed=(\d+)", output)[1]
        for output in outputs
    }
    assert len(seeds) == 2
    assert "hypothesis draws the same every time" in run(ci=False).stdout


PACKAGES = {
    "g++-aarch64-linux-gnu": "ARM",
    "g++-arm-linux-gnueabihf": "ARM",
    "g++-riscv64-linux-gnu": "RISC-V",
    "clang-19": "RISC-V",
    "gcc-arm-none-eabi": "microcontrollers",
    "qemu-system-arm": "microcontrollers",
    "emscripten": "browsers",
}


@pytest.mark.parametrize("package", PACKAGES)
def test_ci_installs_what_tests_on_other_machines_need_or_says_what_is_skipped(package):
    script = (HERE.parent / ".ci" / "run").read_text()
    (block,) = [
        part for part in re.split(r"^fi$", script, flags=re.M) if package in part
    ]
    assert re.search(rf'echo ".*{PACKAGES[package]}.* skipped"', block)
    assert "apt-get install" in block


def test_ci_is_a_script_that_a_shell_reads():
    subprocess.run(["bash", "-n", HERE.parent / ".ci" / "run"], check=True)
    # what is built before the tests is what they look for
    script = (HERE.parent / ".ci" / "run").read_text()
    assert script.index("make wasm") < script.index("CI=true make test\n")
