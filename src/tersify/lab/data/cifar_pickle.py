"""CIFAR's python layout without running anything a pickle asks for.

The files are pickles of a dict with one numpy array. A pickle may call any function it
can name, so every name is refused but the four an array needs, and those are stand-ins
that only record what they were given.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from tersify.lab.data.roots import check_file

# Bytes per pixel: 1.01 in the official files, 1.5 when Python 3 wrote them again in the
# old protocol.
SLACK = 2


def read_batch(
    path: Path, label_key: str, records: int, pixels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (records, pixels) uint8 and labels int64."""
    check_file(path)
    limit = records * pixels * SLACK
    # Before it is read: a pickle of another kind may be of any size.
    if path.stat().st_size > limit:
        raise _damaged(
            path, f"it has {path.stat().st_size} bytes and must have at most {limit}"
        )
    try:
        batch = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        data, labels = _entry(batch, "data"), _entry(batch, label_key)
        if not isinstance(data, _Array) or not isinstance(labels, list):
            raise ValueError(f"'data' must be an array and {label_key!r} a list")
        array = data.array((records, pixels))
        if len(labels) != records or not all(type(label) is int for label in labels):
            raise ValueError(
                f"{label_key!r} must be {records} whole numbers, got {len(labels)} values"
            )
        return array, np.array(labels, dtype=np.int64)
    # A damaged pickle can fail in every way its opcodes can.
    except Exception as error:
        raise _damaged(path, str(error) or type(error).__name__) from None


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(
        f"{str(path)!r} is not an official CIFAR batch: {reason}; fetch it again"
    )


def _entry(batch: Any, key: str) -> Any:
    if not isinstance(batch, dict):
        raise ValueError(f"it must hold a dict, got {type(batch).__name__}")
    for spelling in (key.encode(), key):
        if spelling in batch:
            return batch[spelling]
    raise ValueError(f"it has no entry {key!r}")


class _Array:
    """Stands for numpy.ndarray; its state is (version, shape, dtype, column-major or
    not, bytes).
    """

    state: tuple[Any, ...] = ()

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self, shape: tuple[int, int]) -> np.ndarray:
        if not isinstance(self.state, tuple) or len(self.state) != 5:
            raise ValueError("'data' is not a plain array")
        _, found, dtype, column_major, content = self.state
        if (
            found != shape
            or not isinstance(dtype, _Dtype)
            or dtype.name not in ("u1", b"u1")
        ):
            raise ValueError(
                f"'data' must be uint8 of shape {shape}, got shape {found}"
            )
        if not isinstance(content, bytes) or len(content) != shape[0] * shape[1]:
            raise ValueError(f"'data' must have {shape[0] * shape[1]} bytes")
        return np.frombuffer(content, dtype=np.uint8).reshape(
            shape, order="F" if column_major else "C"
        )


class _Dtype:
    """Stands for numpy.dtype; its state (byte order and such) says nothing about single
    bytes.
    """

    def __init__(self, name: Any, *_: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        pass


def _empty_array(*_: Any) -> _Array:
    return _Array()


def _latin_bytes(text: str, encoding: str) -> bytes:
    return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("_codecs", "encode"): _latin_bytes,
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(
                f"it refers to {module}.{name}, which no CIFAR batch needs"
            )
        return _STAND_INS[module, name]
