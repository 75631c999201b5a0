"""Carries out launches on the CPU: the CUDA sources, built by the C++ compiler with
emulated.hpp.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from torch import Tensor

import tersify.runtime.gpu.launch as launches

HERE = Path(__file__).parent
SOURCES = Path(launches.__file__).parent / "cuda"
COMPILER = shutil.which("g++")


@cache
def _folder() -> str:
    return tempfile.mkdtemp(prefix="tersify-emulated-")


@cache
def _built(
    kernel: str, files: tuple[str, ...], defines: tuple[tuple[str, int], ...]
) -> ctypes.CDLL:
    text = "".join(
        f"#define {name} {value}\n" for name, value in (("PDL", 0), *defines)
    )
    text += "".join(
        (HERE / "emulated.hpp" if f == "common.cuh" else SOURCES / f).read_text()
        for f in files
    )
    text += (
        'extern "C" void emulated(int x, int y, int threads, int shared, void** args) '
        f"{{ emulate({kernel}, x, y, threads, shared, args); }}\n"
    )
    place = Path(_folder()) / hashlib.sha256(text.encode()).hexdigest()[:16]
    source, library = place.with_suffix(".cpp"), place.with_suffix(".so")
    source.write_text(text)
    assert COMPILER is not None
    flags = [
        "-std=c++20",
        "-O1",
        "-ffp-contract=off",
        "-fPIC",
        "-shared",
        "-pthread",
        "-w",
    ]
    done = subprocess.run(
        [COMPILER, *flags, str(source), "-o", str(library)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[:3000]
    return ctypes.CDLL(os.fspath(library))


def run(launch: launches.Launch) -> None:
    library = _built(launch.kernel, launch.files, tuple(sorted(launch.defines.items())))
    values = [_value(a) for a in launch.arguments]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    library.emulated(*launch.grid, launch.threads, launch.shared_bytes, pointers)


def _value(argument: launches.Argument) -> ctypes._SimpleCData:
    if argument is None:
        return ctypes.c_void_p(0)
    if isinstance(argument, Tensor):
        assert argument.is_contiguous()
        return ctypes.c_void_p(argument.data_ptr())
    return (
        ctypes.c_float(argument)
        if isinstance(argument, float)
        else ctypes.c_int(argument)
    )
