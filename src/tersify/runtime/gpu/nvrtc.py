"""CUDA sources → machine code for one GPU, by the compiler library that torch brings,
kept in a cache folder.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import torch

from tersify.codec.atomic import replacing
from tersify.runtime.costs import cache_folder

SOURCES = Path(__file__).parent / "cuda"


class CannotBuild(RuntimeError):  # noqa: N818  (a refusal, not a fault)
    """The kernels cannot be built here; the message says why."""


def machine_code(
    kernel: str,
    files: tuple[str, ...],
    defines: Mapping[str, int],
    capability: tuple[int, int],
) -> bytes:
    """A cubin, from the cache where it lies there."""
    constants = {**defines, "PDL": int(capability >= (9, 0))}
    text = "".join(
        f"#define {name} {value}\n" for name, value in sorted(constants.items())
    )
    text += "".join(map(_source, files))
    library, version = _library()
    arch = f"sm_{capability[0]}{capability[1]}"
    facts = f"{arch} {version} {text}"
    path = (
        cache_folder()
        / "gpu"
        / f"{kernel}-{hashlib.sha256(facts.encode()).hexdigest()[:24]}.cubin"
    )
    try:
        return path.read_bytes()
    except OSError:
        made = _compiled(library, kernel, text, arch)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(made)
    except OSError:
        pass  # it is built again next time
    return made


@cache
def _source(name: str) -> str:
    return (SOURCES / name).read_text(encoding="utf-8")


@cache
def _library() -> tuple[ctypes.CDLL, str]:
    tried = []
    for name in _names():
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            tried.append(str(error))
            continue
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return library, f"{major.value}.{minor.value}"
    raise CannotBuild(
        f"CUDA's compiler library NVRTC is missing ({tried[0] if tried else 'no place to look'})"
    )


def _names() -> Iterator[str]:
    major = (torch.version.cuda or "").partition(".")[0]
    yield f"libnvrtc.so.{major}" if major else "libnvrtc.so"
    for folder in sys.path:
        for found in sorted(Path(folder).glob("nvidia/*/lib/libnvrtc.so*")):
            yield str(found)
    toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    yield from map(str, sorted(Path(toolkit).glob("lib64/libnvrtc.so*")))


def _compiled(library: ctypes.CDLL, kernel: str, text: str, arch: str) -> bytes:
    program = ctypes.c_void_p()
    _checked(
        library,
        library.nvrtcCreateProgram(
            ctypes.byref(program),
            text.encode(),
            b"%b.cu" % kernel.encode(),
            0,
            None,
            None,
        ),
    )
    try:
        options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17"]
        status = library.nvrtcCompileProgram(
            program, len(options), (ctypes.c_char_p * len(options))(*options)
        )
        if status:
            log = (
                _bytes(library, program, "ProgramLog")
                .decode(errors="replace")
                .strip("\0\n ")
            )
            raise CannotBuild(
                f"kernel {kernel} does not compile for {arch}: {log[:500]}"
            )
        return _bytes(library, program, "CUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _bytes(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _checked(
        library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    )
    made = ctypes.create_string_buffer(size.value)
    _checked(library, getattr(library, f"nvrtcGet{what}")(program, made))
    return made.raw


def _checked(library: ctypes.CDLL, status: int) -> None:
    if status:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise CannotBuild(f"NVRTC: {library.nvrtcGetErrorString(status).decode()}")
