"""libtersify through ctypes: built once a session from this checkout, with the system's
zstd or that of its sources.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import machines
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "lib"
READY = "TERSIFY_LIBRARY_BUILD"  # names a finished build, so that nothing is built here
OK, CANNOT_READ, BAD_FILE, NO_PLAN, BAD_ARGUMENT, TOO_LARGE, NOT_FINITE = range(7)


class Port(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_size_t),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    ]


class Options(ctypes.Structure):
    _fields_ = [
        ("threads", ctypes.c_int),
        ("isa", ctypes.c_char_p),
        ("max_bytes", ctypes.c_uint64),
    ]


class Memory(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("count", ctypes.c_size_t)]


@lru_cache(maxsize=1)
def built() -> Path:
    """The folder of the build; where it cannot be made, the reason skips the test."""
    if READY in os.environ:
        return Path(os.environ[READY])
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        pytest.skip("cmake and ninja are needed to build libtersify")
    given = [
        "cmake",
        "-S",
        str(ROOT),
        "-B",
        str(BUILD),
        "-G",
        "Ninja",
        "-DTERSIFY_LIBRARY=ON",
    ]
    with machines.alone_in(BUILD):
        made = subprocess.run(given, capture_output=True, text=True, check=False)
        if "needs zstd" in made.stderr:
            pytest.skip("libtersify needs zstd's headers (libzstd-dev)")
        assert made.returncode == 0, made.stderr
        built = subprocess.run(
            ["ninja", "-C", str(BUILD)], capture_output=True, text=True, check=False
        )
        assert built.returncode == 0, built.stdout[-4000:]
    return BUILD


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(built() / "csrc" / "lib" / "libtersify.so"))
    loaded.tersify_last_error.restype = ctypes.c_char_p
    loaded.tersify_label.restype = ctypes.c_char_p
    loaded.tersify_close.argtypes = [ctypes.c_void_p]
    loaded.tersify_session_free.argtypes = [ctypes.c_void_p]
    return loaded


class LibraryError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(library().tersify_last_error().decode())
        self.code = code


def check(code: int) -> None:
    if code != OK:
        raise LibraryError(code)


class Network:
    """A file opened by libtersify, and one session."""

    def __init__(
        self,
        data: bytes,
        *,
        isa: str | None = None,
        threads: int = 1,
        max_bytes: int = 0,
    ) -> None:
        self._model, self._session = ctypes.c_void_p(), ctypes.c_void_p()
        check(
            library().tersify_open_memory(
                data,
                ctypes.c_size_t(len(data)),
                ctypes.c_uint64(max_bytes),
                ctypes.byref(self._model),
            )
        )
        options = Options(threads, None if isa is None else isa.encode(), max_bytes)
        check(
            library().tersify_session_new(
                self._model, ctypes.byref(options), ctypes.byref(self._session)
            )
        )

    def __del__(self) -> None:
        library().tersify_session_free(self._session)
        library().tersify_close(self._model)

    def output_shape(self, batch: int) -> tuple[int, ...]:
        port = Port()
        check(
            library().tersify_output(
                self._model, ctypes.c_size_t(0), ctypes.byref(port)
            )
        )
        return tuple(
            batch if port.shape[i] < 0 else port.shape[i] for i in range(port.rank)
        )

    def run(self, x: np.ndarray) -> np.ndarray:
        x = np.ascontiguousarray(x)
        made = np.empty(self.output_shape(len(x)), np.float32)
        given, wanted = (Memory(array.ctypes.data, array.size) for array in (x, made))
        check(
            library().tersify_run(
                self._session,
                ctypes.c_int64(len(x)),
                ctypes.byref(given),
                ctypes.byref(wanted),
            )
        )
        return made
