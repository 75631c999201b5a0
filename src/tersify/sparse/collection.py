"""A collection on disk: an index and one array file for each operand, read when asked for."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tersify.sparse.errors import CollectionError
from tersify.sparse.formats import Array, Matrix
from tersify.sparse.npz import from_npz

if TYPE_CHECKING:
    from tersify.sparse.bench import Timing

INDEX = "collection.json"
ARRAYS = "arrays"
FORMAT = "tersify-collection"
VERSION = 1
WEIGHT_FIRST = "W@X"
INPUT_FIRST = "X@W.T"
OPERANDS = ("weight", "input", "output")
_FILE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}\.npz")


class Operation:
    """One matrix product of a pruned network, with real operands.

    `order` is "W@X": weight (M, K), input (groups·K, N), output (M, N); or "X@W.T": weight (M, K), input
    (N, groups·K), output (N, M). With groups, each block of M / groups rows has its own block of the input.
    """

    def __init__(self, folder: Path, record: Mapping[str, Any], model: Mapping[str, Any]) -> None:
        self._folder = folder
        self.name: str = record["name"]
        self.kind: str = record["kind"]
        self.order: str = record["order"]
        self.groups: int = record["groups"]
        self.meta: dict[str, Any] = {**record, "model": {"name": record["model"], **model}}

    @property
    def shape(self) -> tuple[int, int, int]:
        """(M, N, K)."""
        return self.meta["M"], self.meta["N"], self.meta["K"]

    @cached_property
    def weight(self) -> Matrix:
        return self._matrix("weight")

    @cached_property
    def input(self) -> Matrix:
        return self._matrix("input")

    @cached_property
    def output(self) -> Array:
        """The product of the stored operands, computed in double precision."""
        return self._matrix("output").to_dense()

    def run(self, backend: str = "torch", *, check: bool = True) -> Array:
        """The product as `backend` computes it, compared with the stored output."""
        from tersify.sparse.backends import prepare

        result = prepare(self, backend).run()
        if check:
            self.check(result, backend)
        return result

    def check(self, result: Array, by: str = "the result") -> float:
        """The largest error of a result; above the operation's tolerance it is refused.

        The tolerance is 10⁻⁵ of the largest Σ|w·x| of any output, the scale that rounding errors of a sum have.
        """
        if result.shape != self.output.shape:
            raise ValueError(f"{self.name}: {by} has shape {result.shape}, the stored output {self.output.shape}")
        error = float(np.abs(result - self.output).max(initial=0.0))
        if not error <= self.meta["tolerance"]:
            raise ValueError(
                f"{self.name}: {by} differs from the stored output by {error:.3g}, "
                f"more than the tolerance {self.meta['tolerance']:.3g}"
            )
        return error

    def _matrix(self, operand: str) -> Matrix:
        stored = self.meta[operand]
        path = self._folder / ARRAYS / stored["file"]
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise CollectionError(f"{self.name}: its {operand} {path} is missing; collect again") from None
        if hashlib.sha256(data).hexdigest() != stored["sha256"]:
            raise CollectionError(f"{self.name}: its {operand} {path} has another sha256 than the index; collect again")
        matrix = from_npz(data, str(path))
        if list(matrix.shape) != self._shape_of(operand):
            raise CollectionError(f"{path} is {matrix.shape}, {self.name} needs {self._shape_of(operand)}")
        return matrix

    def _shape_of(self, operand: str) -> list[int]:
        m, n, k = self.shape
        shapes = {"weight": [m, k], "input": [k * self.groups, n], "output": [m, n]}
        return shapes[operand] if operand == "weight" or self.order == WEIGHT_FIRST else shapes[operand][::-1]

    def __repr__(self) -> str:
        m, n, k = self.shape
        return f"Operation({self.name!r}, {self.kind}, M {m} N {n} K {k}, {self.order})"


class Collection:
    """The operations of a folder that `tersify.collect` wrote. Opening reads the index only."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._index = _read_index(self.path)
        self._by_name = {record["name"]: record for record in self._index["operations"]}

    @property
    def models(self) -> dict[str, dict[str, Any]]:
        """What is known of each network: its hash, how it was pruned, its accuracy, its licence."""
        return self._index["models"]

    @property
    def names(self) -> list[str]:
        return list(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Operation]:
        return (self._operation(record) for record in self._index["operations"])

    def __getitem__(self, name: str | int) -> Operation:
        if isinstance(name, int):
            return self._operation(self._index["operations"][name])
        if name not in self._by_name:
            raise ValueError(f"no operation {name!r} in {self.path}; `names` lists the {len(self)} there are")
        return self._operation(self._by_name[name])

    def _operation(self, record: Mapping[str, Any]) -> Operation:
        return Operation(self.path, record, self.models[record["model"]])

    def verify(self) -> int:
        """Read every array and compare its hash and its shape; returns how many bytes they have."""
        for operation in self:
            for operand in OPERANDS:
                operation._matrix(operand)
        return sum(record[operand]["file_bytes"] for record in self._index["operations"] for operand in OPERANDS)

    def export(self, format: str, out: str | os.PathLike[str]) -> list[Path]:
        """Write every operation as mtx, smtx, tns or timeloop files into a new folder."""
        from tersify.sparse.exports import export

        return export(self, format, Path(out))

    def bench(self, backends: list[str] | None = None, *, rounds: int = 5, threads: int = 1) -> list[Timing]:
        """Every operation on every backend that is installed, timed in turns."""
        from tersify.sparse.bench import bench

        return bench(self, backends, rounds=rounds, threads=threads)

    def __repr__(self) -> str:
        return f"Collection({str(self.path)!r}: {len(self)} operations of {', '.join(self.models) or 'nothing'})"


def _read_index(path: Path) -> dict[str, Any]:
    file = path / INDEX
    if not path.is_dir():
        raise CollectionError(f"{path} is no folder; a collection is one that `tersify collect` wrote")
    if not file.is_file():
        raise CollectionError(f"{path} holds no {INDEX}: it is empty, or writing it never finished; collect again")
    try:
        index = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CollectionError(f"{file} is damaged or cut short ({error}); collect again") from None
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise CollectionError(f"{file} is not the index of a collection")
    if index.get("version") != VERSION:
        raise CollectionError(f"{file} has version {index.get('version')!r}; this program reads version {VERSION}")
    try:
        _check_index(index, path)
    except (KeyError, TypeError, AttributeError) as error:
        raise CollectionError(f"{file} lacks what an index must say ({type(error).__name__}: {error})") from None
    return index


def _check_index(index: Mapping[str, Any], path: Path) -> None:
    if not index["operations"]:
        raise CollectionError(f"{path / INDEX} lists no operation; collect again")
    folder = path / ARRAYS
    found = {entry.name: entry.stat().st_size for entry in os.scandir(folder)} if folder.is_dir() else {}
    names = set()
    for record in index["operations"]:
        sizes = [record[key] for key in ("M", "N", "K", "groups")]
        if not all(type(size) is int and size > 0 for size in sizes) or record["order"] not in (
            WEIGHT_FIRST,
            INPUT_FIRST,
        ):
            raise CollectionError(f"{record['name']}: sizes {sizes} and order {record['order']!r} are impossible")
        if record["model"] not in index["models"]:
            raise CollectionError(f"{record['name']}: its model {record['model']!r} is missing")
        figures = [record["tolerance"], record["weight"]["density"], record["input"]["density"]]
        figures += [*record["weight"]["format_bytes"].values(), record["columns"]["of"]]
        known = {record["weight"][key] for key in ("format", "best_format")} <= set(record["weight"]["format_bytes"])
        if not all(isinstance(f, (int, float)) and 0 <= f < math.inf for f in figures) or not known:
            raise CollectionError(f"{record['name']}: its tolerance and statistics are no numbers: {figures}")
        if record["name"] in names:
            raise CollectionError(f"{path / INDEX} lists {record['name']!r} twice")
        names.add(record["name"])
        for operand in OPERANDS:
            file, size = record[operand]["file"], record[operand]["file_bytes"]
            if not _FILE_NAME.fullmatch(file):
                raise CollectionError(f"{record['name']}: {file!r} is no name of an array file")
            if found.get(file) != size:
                state = f"has {found[file]} bytes, not {size}" if file in found else "is missing"
                raise CollectionError(f"{record['name']}: its {operand} {folder / file} {state}; collect again")
