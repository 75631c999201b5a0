"""libtersify as others find it: by CMake and by pkg-config, from C and from C++."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from library import ROOT, Network, built
from plan_networks import networks, packed
from torch import Tensor, nn

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


C_ONLY = """cmake_minimum_required(VERSION 3.18)
project(plain_c LANGUAGES C)
find_package(tersify REQUIRED)
add_executable(first first.c)
target_link_libraries(first tersify::tersify_LINK)
"""


@pytest.mark.parametrize("link", ["shared", "static"])
def test_a_project_that_knows_only_c_links(
    link: str, prefix: Path, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "CMakeLists.txt").write_text(C_ONLY.replace("LINK", link))
    shutil.copy(EXAMPLES / "first.c", tmp_path)
    build = tmp_path / "build"
    for command in (
        f"cmake -S {tmp_path} -B {build} -G Ninja -DCMAKE_PREFIX_PATH={prefix}",
        f"ninja -C {build}",
    ):
        done = subprocess.run(
            command.split(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert of_zeros(build / "first", file, prefix / "lib") == wanted_of(file)


def test_the_shared_library_exports_the_functions_of_its_header_alone(
    prefix: Path,
) -> None:
    if shutil.which("nm") is None:
        pytest.skip("nm is not installed")
    (shared,) = prefix.glob("lib*/**/libtersify.so")
    told = subprocess.run(
        ["nm", "-D", "--defined-only", shared],
        capture_output=True,
        text=True,
        check=True,
    )
    exported = {line.split()[-1].split("@")[0] for line in told.stdout.splitlines()}
    header = (prefix / "include" / "tersify.h").read_text()
    assert exported == set(re.findall(r"TERSIFY_API [^(;]*?\b(tersify_\w+)\(", header))


class Two(nn.Module):
    """Two inputs and one output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.layer(x) + self.layer(y)


class Halves(nn.Module):
    """One input and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(x), self.two(x)


@pytest.fixture(scope="module")
def examples(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example programs, which end at once where they read past a tensor."""
    folder = tmp_path_factory.mktemp("examples")
    (library,) = {found.parent for found in prefix.glob("lib*/**/libtersify.so")}
    checked = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    for compiler, source in (("cc", "first.c"), ("c++", "batch.cpp")):
        given = [compiler, EXAMPLES / source, "-o", folder / source.split(".")[0]]
        given += [*checked, f"-I{prefix}/include", f"-L{library}", "-ltersify"]
        given += [f"-Wl,-rpath,{library}"]
        subprocess.run(given, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("program", ["first", "batch"])
@pytest.mark.parametrize("name", ["two inputs", "two outputs", "words"])
def test_an_example_says_which_networks_it_is_not_for(
    name: str, program: str, examples: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6)
    model, given = {
        "two inputs": (Two(), [x, x]),
        "two outputs": (Halves(), [x]),
        "words": (networks()["tagger"][0], [networks()["tagger"][1]]),
    }[name]
    path = tmp_path / "net.terse"
    tersify.save(packed(model.eval()), path, network=model, example=given, plan="fp32")
    done = subprocess.run(
        [examples / program, path], capture_output=True, text=True, check=False
    )
    if (name, program) == ("words", "first"):  # zeros are words, too
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert ("float32" if name == "words" else "one input and one output") in done.stderr


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
