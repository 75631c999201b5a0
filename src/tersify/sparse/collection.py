"""A collection on disk: an index and one array file for each operand, read when asked
for.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tersify.regular import read_regular
from tersify.sparse.collection_error import CollectionError
from tersify.sparse.collection_index import ARRAYS, OPERANDS, WEIGHT_FIRST, read_index
from tersify.sparse.formats import Array, Matrix
from tersify.sparse.npz import from_npz

if TYPE_CHECKING:
    from torch import Tensor

    from tersify.sparse.backend_times import Timing


class Operation:
    """One matrix product of a pruned network, with real operands.

    `order` is "W@X": weight (M, K), input (groups·K, N), output (M, N); or "X@W.T":
    weight (M, K), input (N, groups·K), output (N, M). With groups, each block of M /
    groups rows has its own block of the input.
    """

    def __init__(
        self, folder: Path, record: Mapping[str, Any], model: Mapping[str, Any]
    ) -> None:
        self._folder = folder
        self.name: str = record["name"]
        self.kind: str = record["kind"]
        self.order: str = record["order"]
        self.groups: int = record["groups"]
        self.meta: dict[str, Any] = {
            **record,
            "model": {"name": record["model"], **model},
        }

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

    def check(self, result: npt.ArrayLike | Tensor, by: str = "the result") -> float:
        """The largest error of a result, a torch tensor too; above the operation's
        tolerance it is refused.

        The tolerance is 10⁻⁵ of the largest Σ|w·x| of any output, the scale that
        rounding errors of a sum have.
        """
        given = np.asarray(
            result.detach().cpu() if hasattr(result, "detach") else result
        )
        if given.shape != self.output.shape:
            raise ValueError(
                f"{self.name}: {by} has shape {given.shape}, the stored output {self.output.shape}"
            )
        error = float(np.abs(given - self.output).max(initial=0.0))
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
            data = read_regular(path)
        except FileNotFoundError:
            raise CollectionError(
                f"{self.name}: its {operand} {path} is missing; collect again"
            ) from None
        if hashlib.sha256(data).hexdigest() != stored["sha256"]:
            raise CollectionError(
                f"{self.name}: its {operand} {path} has another sha256 than the index; collect again"
            )
        matrix = from_npz(data, str(path))
        if list(matrix.shape) != self._shape_of(operand):
            raise CollectionError(
                f"{path} is {matrix.shape}, {self.name} needs {self._shape_of(operand)}"
            )
        return matrix

    def _shape_of(self, operand: str) -> list[int]:
        m, n, k = self.shape
        shapes = {"weight": [m, k], "input": [k * self.groups, n], "output": [m, n]}
        return (
            shapes[operand]
            if operand == "weight" or self.order == WEIGHT_FIRST
            else shapes[operand][::-1]
        )

    def __repr__(self) -> str:
        m, n, k = self.shape
        return f"Operation({self.name!r}, {self.kind}, M {m} N {n} K {k}, {self.order})"


class Collection:
    """The operations of a folder that `tersify.collect` wrote. Opening reads the index
    only.

    Args:
        path: the folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._index = read_index(self.path)
        self._by_name = {record["name"]: record for record in self._index["operations"]}

    @property
    def models(self) -> dict[str, dict[str, Any]]:
        """What is known of each network: its hash, how it was pruned, its accuracy, its
        licence.
        """
        return self._index["models"]

    @property
    def names(self) -> list[str]:
        """The operations' names, by which `collection[name]` finds them."""
        return list(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Operation]:
        return map(self._operation, self._index["operations"])

    def __getitem__(self, name: str | int) -> Operation:
        if isinstance(name, int):
            return self._operation(self._index["operations"][name])
        if name not in self._by_name:
            raise ValueError(
                f"no operation {name!r} in {self.path}; `names` lists the {len(self)} there are"
            )
        return self._operation(self._by_name[name])

    def _operation(self, record: Mapping[str, Any]) -> Operation:
        return Operation(self.path, record, self.models[record["model"]])

    def verify(self) -> int:
        """Read every array and compare its hash and its shape; returns how many bytes
        they have.
        """
        for operation in self:
            for operand in OPERANDS:
                operation._matrix(operand)
        return sum(
            record[operand]["file_bytes"]
            for record in self._index["operations"]
            for operand in OPERANDS
        )

    def export(self, format: str, out: str | os.PathLike[str]) -> list[Path]:
        """Write every operation in a `format` (mtx, smtx, tns or timeloop) into the new
        folder `out`.
        """
        from tersify.sparse.exports import export

        return export(self, format, Path(out))

    def bench(
        self, backends: list[str] | None = None, *, rounds: int = 5, threads: int = 1
    ) -> list[Timing]:
        """Every operation timed on every backend, in turns.

        Args:
            backends: names such as "scipy-csr"; all that are installed by default.
            rounds: how often every backend gets its turn.
            threads: threads of every backend.
        """
        from tersify.sparse.backend_times import bench

        return bench(self, backends, rounds=rounds, threads=threads)

    def __repr__(self) -> str:
        return f"Collection({str(self.path)!r}: {len(self)} operations of {', '.join(self.models) or 'nothing'})"
