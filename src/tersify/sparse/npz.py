"""One matrix, one `.npz`: the Binsparse container, with the format's own name beside
Binsparse's.

Binsparse describes dense, COO, CSR and CSC matrices by name, and BSR (as a tensor of
blocks) and DOK (as a vector of keys) by its levels. It has no bitmap and no mixture of
dense and sparse rows: those two carry our description only.
"""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import numpy as np

from tersify.sparse.collection_error import CollectionError
from tersify.sparse.formats import FORMATS, Array, Matrix

HEADER = "binsparse"
BINSPARSE_VERSION = "0.1.0"
# Our array names → Binsparse's, per format.
NAMES: dict[str, dict[str, str]] = {
    "dense": {"values": "values"},
    "coo": {"rows": "indices_0", "columns": "indices_1", "values": "values"},
    "csr": {"pointers": "pointers_to_1", "columns": "indices_1", "values": "values"},
    "csc": {"pointers": "pointers_to_1", "rows": "indices_1", "values": "values"},
    "bsr": {"pointers": "pointers_to_1", "columns": "indices_1", "values": "values"},
    "dok": {"keys": "indices_0", "values": "values"},
    "bitmap": {"bits": "bits", "values": "values"},
    "hybrid": {
        "dense_rows": "dense_rows",
        "dense_values": "dense_values",
        "pointers": "pointers_to_1",
        "columns": "indices_1",
        "values": "values",
    },
}
_PREDEFINED = {"dense": "DMATR", "coo": "COOR", "csr": "CSR", "csc": "CSC"}
_BLOCKS = {
    "level_desc": "dense",
    "rank": 1,
    "level": {
        "level_desc": "sparse",
        "rank": 1,
        "level": {"level_desc": "dense", "rank": 2, "level": {"level_desc": "element"}},
    },
}


def to_npz(matrix: Matrix) -> bytes:
    """The file's bytes; the same matrix always gives the same ones."""
    stored = {
        NAMES[matrix.format][name]: array for name, array in matrix.arrays.items()
    }
    header: dict[str, Any] = {
        "tersify": {"format": matrix.format, "shape": list(matrix.shape)}
    }
    if matrix.format == "bsr":
        header["tersify"]["block"] = matrix.arrays["values"].shape[-1]
    description = _binsparse(matrix)
    if description is not None:
        types = {name: str(array.dtype) for name, array in stored.items()}
        header[HEADER] = {
            "version": BINSPARSE_VERSION,
            "data_types": types,
            **description,
        }
    buffer = io.BytesIO()
    # Binsparse's values are one-dimensional, whatever the matrix.
    flat = {
        name: array.reshape(-1) if name == "values" else array
        for name, array in stored.items()
    }
    members: dict[str, Any] = {
        HEADER: np.asarray(json.dumps(header, sort_keys=True)),
        **flat,
    }
    np.savez(buffer, **members)
    return buffer.getvalue()


def _binsparse(matrix: Matrix) -> dict[str, Any] | None:
    height, width = matrix.shape
    stored = {
        "shape": [height, width],
        "number_of_stored_values": int(matrix.arrays["values"].size),
    }
    if matrix.format in _PREDEFINED:
        return stored | {"format": _PREDEFINED[matrix.format]}
    if matrix.format == "bsr":
        block = matrix.arrays["values"].shape[-1]
        shape = [-(-height // block), -(-width // block), block, block]
        return stored | {
            "format": "custom",
            "custom": {"level": _BLOCKS},
            "shape": shape,
        }
    if matrix.format == "dok":
        return stored | {"format": "CVEC", "shape": [height * width]}
    return None


def from_npz(data: bytes, where: str) -> Matrix:
    """The matrix in a file's bytes; whatever is wrong with them is a `CollectionError`."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            # A compressed member could unpack to any size; stored ones cannot exceed
            # the file.
            if sum(member.file_size for member in archive.infolist()) > len(data):
                raise CollectionError(
                    f"{where} is compressed; a collection's arrays are stored as they are"
                )
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            header = json.loads(str(archive[HEADER].item()))["tersify"]
            format, shape, block = (
                header["format"],
                tuple(header["shape"]),
                header.get("block", 1),
            )
            whole = all(type(n) is int and n >= 0 for n in (*shape, block - 1))
            if format not in FORMATS or len(shape) != 2 or not whole:
                raise CollectionError(
                    f"{where} holds the format {format!r} and shape {shape}, which are unknown here"
                )
            arrays = {ours: archive[theirs] for ours, theirs in NAMES[format].items()}
            if not all(isinstance(array, np.ndarray) for array in arrays.values()):
                raise CollectionError(f"{where} holds members that are no arrays")
    except CollectionError:
        raise
    except Exception as error:
        # zipfile, numpy and json each raise several kinds for damaged bytes
        raise CollectionError(
            f"{where} is no array file: {type(error).__name__}: {error}"
        ) from None
    height, width = shape
    try:
        own = {"dense": shape, "bsr": (-1, block, block)}
        if format in own:
            arrays["values"] = arrays["values"].reshape(own[format])
    except ValueError as error:
        raise CollectionError(
            f"{where} holds values that do not fit: {error}"
        ) from None
    matrix = Matrix(format, (height, width), arrays)
    _check(matrix, where)
    return matrix


def _check(matrix: Matrix, where: str) -> None:
    """Indices inside the matrix and arrays of one length, so that no later step can go
    astray.
    """
    _check_values(matrix, where)
    height, width = matrix.shape
    arrays, values = matrix.arrays, matrix.arrays["values"]
    block = values.shape[-1] if matrix.format == "bsr" else 1
    limits = {
        "rows": height,
        "columns": -(-width // block),
        "keys": height * width,
        "dense_rows": height,
    }
    for name in (each for each in limits if each in arrays):
        wanted = len(arrays["dense_values"]) if name == "dense_rows" else len(values)
        _check_indices(arrays[name], wanted, limits[name], f"{where}: {name}")
    if "pointers" in arrays:
        slices = width if matrix.format == "csc" else -(-height // block)
        _check_pointers(arrays["pointers"], slices, len(values), where)
    if matrix.format == "bsr":
        # Blocks are whole, so one at the ragged edge could hold values beyond it.
        e = matrix.entries()
        if e.rows.max(initial=-1) >= height or e.columns.max(initial=-1) >= width:
            raise CollectionError(
                f"{where}: blocks at the edge hold values outside of {height}×{width}"
            )
    if "dense_values" in arrays and arrays["dense_values"].shape[1:] != (width,):
        raise CollectionError(
            f"{where}: dense rows must be {width} wide, got {arrays['dense_values'].shape}"
        )
    if "bits" in arrays:
        _check_bitmap(arrays["bits"], matrix, where)


def _check_values(matrix: Matrix, where: str) -> None:
    values = matrix.arrays["values"]
    if values.ndim != {"dense": 2, "bsr": 3}.get(matrix.format, 1):
        raise CollectionError(f"{where} holds values of {values.ndim} dimensions")
    beside = matrix.arrays.get("dense_values", values)
    if values.dtype not in (np.float32, np.float64) or beside.dtype != values.dtype:
        raise CollectionError(
            f"{where} holds values of type {values.dtype}; float32 and float64 are known"
        )


def _check_indices(indices: Array, wanted: int, limit: int, what: str) -> None:
    if indices.ndim != 1 or indices.dtype.kind != "u" or len(indices) != wanted:
        raise CollectionError(
            f"{what} must be {wanted} unsigned numbers, got {indices.shape}"
        )
    if len(indices) and int(indices.max()) >= limit:
        raise CollectionError(
            f"{what} reaches {int(indices.max())}, the limit is {limit}"
        )


def _check_bitmap(bits: Array, matrix: Matrix, where: str) -> None:
    height, width = matrix.shape
    count = len(matrix.arrays["values"])
    if bits.dtype != np.uint8 or bits.shape != (-(-height * width // 8),):
        raise CollectionError(
            f"{where}: a bitmap of {height}×{width} has {-(-height * width // 8)} bytes"
        )
    if int(np.unpackbits(bits, count=height * width).sum()) != count:
        raise CollectionError(
            f"{where}: the bitmap and its {count} values do not fit each other"
        )


def _check_pointers(pointers: Array, slices: int, count: int, where: str) -> None:
    # Unsigned, so that no pointer can be negative; the casts below cannot wrap.
    good = (
        pointers.ndim == 1
        and pointers.dtype.kind == "u"
        and len(pointers) == slices + 1
    )
    if (
        not good
        or pointers[0] != 0
        or pointers[-1] != count
        or (np.diff(pointers.astype(np.int64)) < 0).any()
    ):
        raise CollectionError(
            f"{where}: pointers must rise from 0 to {count} in {slices} steps"
        )
