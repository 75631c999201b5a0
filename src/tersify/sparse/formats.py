"""Sparse formats: seven ways to hold the same matrix, each one class of arrays, sized
in real bytes.

A format packs the entries of a matrix into named arrays and gives the entries back, bit
for bit. Index arrays take the narrowest unsigned type that holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
BLOCKS = (2, 4, 8, 16)


@dataclass(frozen=True)
class Entries:
    """What is not zero, in row-major order."""

    shape: tuple[int, int]
    rows: Array
    columns: Array
    values: Array

    @classmethod
    def of(cls, dense: Array) -> Entries:
        if dense.ndim != 2:
            raise ValueError(
                f"a sparse format holds a matrix, got {dense.ndim} dimensions"
            )
        rows, columns = np.nonzero(dense)
        return cls(
            (dense.shape[0], dense.shape[1]), rows, columns, dense[rows, columns]
        )

    def to_dense(self) -> Array:
        dense = np.zeros(self.shape, self.values.dtype)
        dense[self.rows, self.columns] = self.values
        return dense


@dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix in one of the formats."""

    format: str
    shape: tuple[int, int]
    arrays: Mapping[str, Array]

    @classmethod
    def of(cls, dense: Array, format: str = "csr") -> Matrix:
        return cls.packed(Entries.of(np.asarray(dense)), format)

    @classmethod
    def packed(cls, entries: Entries, format: str) -> Matrix:
        """`best` is the format with the fewest bytes."""
        if format == "best":
            return min(
                (cls.packed(entries, name) for name in FORMATS),
                key=lambda m: m.size_bytes,
            )
        if format not in FORMATS:
            raise ValueError(
                f"unknown format {format!r}; known: {', '.join(FORMATS)}, best"
            )
        return cls(format, entries.shape, FORMATS[format][0](entries))

    def entries(self) -> Entries:
        return FORMATS[self.format][1](self.arrays, self.shape)

    def to_dense(self) -> Array:
        if self.format == "dense":
            return self.arrays["values"]
        return self.entries().to_dense()

    def to(self, format: str) -> Matrix:
        return self if format == self.format else self.packed(self.entries(), format)

    def to_dict(self) -> dict[tuple[int, int], float]:
        """The dictionary of keys that gives DOK its name."""
        e = self.entries()
        return dict(
            zip(
                zip(e.rows.tolist(), e.columns.tolist(), strict=True),
                e.values.tolist(),
                strict=True,
            )
        )

    @property
    def nnz(self) -> int:
        return len(self.entries().values)

    @property
    def size_bytes(self) -> int:
        """Of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def __repr__(self) -> str:
        return f"Matrix({self.shape[0]}×{self.shape[1]}, {self.format}, {self.size_bytes:,} bytes)"


def narrow(indices: Array, limit: int) -> Array:
    """Indices 0..limit in the narrowest unsigned type."""
    return indices.astype(np.min_scalar_type(max(limit, 0)))


def _pointers(sorted_indices: Array, count: int) -> Array:
    starts = np.zeros(count + 1, np.int64)
    # starts[i] is the first entry of slice i, and the last one the number of entries.
    np.cumsum(np.bincount(sorted_indices, minlength=count), out=starts[1:])
    return narrow(starts, len(sorted_indices))


def _expanded(pointers: Array) -> Array:
    """Which of the compressed slices each entry belongs to."""
    starts = pointers.astype(np.int64)
    return np.repeat(np.arange(len(starts) - 1), starts[1:] - starts[:-1])


def _to_dense_arrays(e: Entries) -> dict[str, Array]:
    return {"values": e.to_dense()}


def _from_dense_arrays(arrays: Mapping[str, Array], shape: tuple[int, int]) -> Entries:
    return Entries.of(arrays["values"])


def _to_coo(e: Entries) -> dict[str, Array]:
    return {
        "rows": narrow(e.rows, e.shape[0] - 1),
        "columns": narrow(e.columns, e.shape[1] - 1),
        "values": e.values,
    }


def _from_coo(arrays: Mapping[str, Array], shape: tuple[int, int]) -> Entries:
    return Entries(
        shape,
        arrays["rows"].astype(np.int64),
        arrays["columns"].astype(np.int64),
        arrays["values"],
    )


def _to_csr(e: Entries) -> dict[str, Array]:
    return {
        "pointers": _pointers(e.rows, e.shape[0]),
        "columns": narrow(e.columns, e.shape[1] - 1),
        "values": e.values,
    }


def _from_csr(arrays: Mapping[str, Array], shape: tuple[int, int]) -> Entries:
    return Entries(
        shape,
        _expanded(arrays["pointers"]),
        arrays["columns"].astype(np.int64),
        arrays["values"],
    )


def _to_csc(e: Entries) -> dict[str, Array]:
    # Stable, so rows stay ascending within a column.
    order = np.argsort(e.columns, kind="stable")
    return {
        "pointers": _pointers(e.columns, e.shape[1]),
        "rows": narrow(e.rows[order], e.shape[0] - 1),
        "values": e.values[order],
    }


def _from_csc(arrays: Mapping[str, Array], shape: tuple[int, int]) -> Entries:
    rows, columns = arrays["rows"].astype(np.int64), _expanded(arrays["pointers"])
    order = np.argsort(rows, kind="stable")
    return Entries(shape, rows[order], columns[order], arrays["values"][order])


def _to_bsr(e: Entries) -> dict[str, Array]:
    """Square blocks, of the size that takes the fewest bytes; a ragged edge is filled
    with zeros.
    """
    return min(
        (blocked(e, block) for block in BLOCKS),
        key=lambda arrays: sum(a.nbytes for a in arrays.values()),
    )


def blocked(e: Entries, block: int) -> dict[str, Array]:
    """BSR arrays of one block size: `values` is (blocks, block, block)."""
    height, width = -(-e.shape[0] // block), -(-e.shape[1] // block)
    # The block of each entry, numbered row by row.
    keys = (e.rows // block) * width + e.columns // block
    used, number = np.unique(keys, return_inverse=True)
    values = np.zeros((len(used), block, block), e.values.dtype)
    values[number, e.rows % block, e.columns % block] = e.values
    return {
        "pointers": _pointers(used // max(width, 1), height),
        "columns": narrow(used % max(width, 1), width - 1),
        "values": values,
    }


def _from_bsr(arrays: Mapping[str, Array], shape: tuple[int, int]) -> Entries:
    block = arrays["values"].shape[-1]
    number, inner_rows, inner_columns = np.nonzero(arrays["values"])
    rows = _expanded(arrays["pointers"])[number] * block + inner_rows
    columns = arrays["columns"].astype(np.int64)[number] * block + inner_columns
    order = np.lexsort((columns, rows))
    values = arrays["values"][number, inner_rows, inner_columns]
    return Entries(shape, rows[order], columns[order], values[order])


def _to_dok(e: Entries) -> dict[str, Array]:
    keys = e.rows * e.shape[1] + e.columns
    return {"keys": narrow(keys, e.shape[0] * e.shape[1] - 1), "values": e.values}


def _from_dok(arrays: Mapping[str, Array], shape: tuple[int, int]) -> Entries:
    rows, columns = np.divmod(arrays["keys"].astype(np.int64), max(shape[1], 1))
    return Entries(shape, rows, columns, arrays["values"])


def _to_bitmap(e: Entries) -> dict[str, Array]:
    present = np.zeros(e.shape[0] * e.shape[1], bool)
    present[e.rows * e.shape[1] + e.columns] = True
    return {"bits": np.packbits(present), "values": e.values}


def _from_bitmap(arrays: Mapping[str, Array], shape: tuple[int, int]) -> Entries:
    keys = np.flatnonzero(np.unpackbits(arrays["bits"], count=shape[0] * shape[1]))
    rows, columns = np.divmod(keys, max(shape[1], 1))
    return Entries(shape, rows, columns, arrays["values"])


def _to_hybrid(e: Entries) -> dict[str, Array]:
    """A row that is smaller dense is dense, the others are CSR."""
    counts = np.bincount(e.rows, minlength=e.shape[0])
    index_bytes = np.min_scalar_type(max(e.shape[1] - 1, 0)).itemsize
    full = counts * (e.values.itemsize + index_bytes) > e.shape[1] * e.values.itemsize
    sparse = ~full[e.rows]
    rest = Entries(e.shape, e.rows[sparse], e.columns[sparse], e.values[sparse])
    dense = np.zeros((int(full.sum()), e.shape[1]), e.values.dtype)
    place = np.cumsum(full) - 1
    dense[place[e.rows[~sparse]], e.columns[~sparse]] = e.values[~sparse]
    return {
        "dense_rows": narrow(np.flatnonzero(full), e.shape[0] - 1),
        "dense_values": dense,
        **_to_csr(rest),
    }


def _from_hybrid(arrays: Mapping[str, Array], shape: tuple[int, int]) -> Entries:
    sparse, dense = _from_csr(arrays, shape), Entries.of(arrays["dense_values"])
    rows = np.concatenate(
        [sparse.rows, arrays["dense_rows"].astype(np.int64)[dense.rows]]
    )
    columns, values = (
        np.concatenate([sparse.columns, dense.columns]),
        np.concatenate([sparse.values, dense.values]),
    )
    order = np.lexsort((columns, rows))
    return Entries(shape, rows[order], columns[order], values[order])


Pack = Callable[[Entries], "dict[str, Array]"]
Unpack = Callable[["Mapping[str, Array]", "tuple[int, int]"], Entries]
FORMATS: dict[str, tuple[Pack, Unpack]] = {
    "csr": (_to_csr, _from_csr),
    "csc": (_to_csc, _from_csc),
    "coo": (_to_coo, _from_coo),
    "bsr": (_to_bsr, _from_bsr),
    "dok": (_to_dok, _from_dok),
    "bitmap": (_to_bitmap, _from_bitmap),
    "hybrid": (_to_hybrid, _from_hybrid),
    "dense": (_to_dense_arrays, _from_dense_arrays),
}
