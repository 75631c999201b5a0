"""libtersify as others find it: by CMake and by pkg-config, from C and from C++."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from library import ROOT, Network, built
from plan_networks import networks, packed

import tersify

pytestmark = pytest.mark.long  # builds the library
EXAMPLES = ROOT / "csrc" / "lib" / "examples"


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installed where nobody looks by himself."""
    folder = tmp_path_factory.mktemp("elsewhere") / "prefix"
    command = ["cmake", "--install", str(built()), "--prefix", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, example = networks()["ternary"]
    path = tmp_path_factory.mktemp("file") / "net.terse"
    tersify.save(packed(model), path, network=model, example=example, plan="fp32")
    return path


def of_zeros(program: Path, file: Path, library: Path) -> list[float]:
    """What the example program prints for an item of zeros."""
    found = os.environ | {"LD_LIBRARY_PATH": str(library)}
    told = subprocess.run(
        [program, file], env=found, capture_output=True, text=True, check=True
    )
    return [float(line) for line in told.stdout.split()]


def wanted_of(file: Path) -> list[float]:
    (made,) = Network(file.read_bytes()).run(np.zeros((1, 3, 12, 12), np.float32))
    return [float(f"{value:g}") for value in made]


def test_cmake_finds_the_installed_library_for_c_and_for_cpp(
    prefix: Path, file: Path, tmp_path: Path
) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "outside")
    build = tmp_path / "build"
    for command in (
        f"cmake -S {tmp_path}/outside -B {build} -G Ninja -DCMAKE_PREFIX_PATH={prefix}",
        f"ninja -C {build}",
    ):
        done = subprocess.run(
            command.split(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert of_zeros(build / "first", file, prefix / "lib") == wanted_of(file)
    found = os.environ | {"LD_LIBRARY_PATH": str(prefix / "lib")}
    told = subprocess.run(
        [build / "batch", file], env=found, capture_output=True, text=True, check=True
    )
    assert told.stdout == f"28 numbers, the first is {wanted_of(file)[0]:g}\n"


@pytest.mark.parametrize("link", ["shared", "static"])
def test_pkg_config_tells_a_c_compiler_how_to_link(
    link: str, prefix: Path, file: Path, tmp_path: Path
) -> None:
    if shutil.which("pkg-config") is None:
        pytest.skip("pkg-config is not installed")
    (where,) = prefix.glob("lib*/**/pkgconfig")
    told = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "--static", "tersify"],
        env=os.environ | {"PKG_CONFIG_PATH": str(where)},
        capture_output=True,
        text=True,
        check=True,
    )
    more = ["-static"] if link == "static" else []
    program = tmp_path / "first"
    given = ["cc", EXAMPLES / "first.c", "-o", program, *more, *told.stdout.split()]
    subprocess.run(given, check=True, capture_output=True)
    assert of_zeros(program, file, where.parent) == wanted_of(file)
