"""What the wheels need of the sources, and what whoever builds without a compiler is
told.
"""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def wheels():
    spec = importlib.util.spec_from_file_location(
        "wheels", ROOT / "tools" / "wheels.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_sources_ask_the_cpu_by_themselves():
    """The wheels' compiler has no run-time library for these, and the extension would
    not load.
    """
    builtins = re.compile(r"__builtin_cpu_(supports|init|is)|target_clones")
    sources = [
        path
        for path in (ROOT / "csrc").rglob("*")
        if path.suffix in (".cpp", ".hpp", ".h")
    ]
    found = [
        path.relative_to(ROOT)
        for path in sources
        if builtins.search(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "ask csrc/cpu/features.hpp"


@pytest.mark.parametrize(
    "name",
    [
        "t-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        "t-manylinux_2_17_x86_64.whl",
    ],
)
def test_a_wheel_for_systems_that_people_have_passes(name):
    wheels().check_platform(name, "x86_64")


@pytest.mark.parametrize(
    "name",
    [
        "t-manylinux_2_34_x86_64.whl",
        "t-linux_x86_64.whl",
        "t-manylinux_2_17_aarch64.whl",
    ],
)
def test_a_wheel_that_asks_for_more_is_refused(name):
    with pytest.raises(SystemExit, match="must run with glibc"):
        wheels().check_platform(name, "x86_64")


def test_without_a_compiler_the_build_says_so_in_one_sentence(tmp_path):
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not here")
    bare = tmp_path / "bin"
    bare.mkdir()
    for tool in ("ninja", "make"):
        if found := shutil.which(tool):
            (bare / tool).symlink_to(found)
    done = subprocess.run(
        [cmake, "-S", ROOT, "-B", tmp_path / "build"],
        env={"PATH": str(bare)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    told = " ".join(done.stderr.split())
    assert (
        "need a C++ compiler and none was found: install g++ or clang++, or a wheel"
        in told
    )
    assert "CMAKE_CXX_COMPILER" not in told
