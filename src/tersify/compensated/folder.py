"""What a run has finished, on disk: it goes on there after it was stopped, and holds
one matrix in memory at a time.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tersify.compensated.matrices import Matrix
from tersify.compensated.partial import PartialSums
from tersify.compensated.settings import Compensation
from tersify.tensor import CompressedTensor

PARTS = ("codes", "codebook", "values", "scale", "column_scale")


@dataclass(frozen=True, eq=False)
class Measured:
    """What is kept of a matrix's statistics: what each row matters, and U of its
    inputs.
    """

    rows: Tensor
    upper: Tensor

    @property
    def spread(self) -> Tensor:
        return self.upper.diagonal().float()


class Folder:
    """The files of one run: `run.json` says which, and each matrix has its statistics
    and its packed form.

    Without a path the files live as long as the run. Statistics do not depend on the
    settings beyond their damping, so that a folder serves many settings: only packed
    forms are made anew.
    """

    def __init__(
        self,
        path: str | Path | None,
        settings: Compensation,
        matrices: Sequence[Matrix],
    ) -> None:
        self._own = (
            tempfile.TemporaryDirectory(prefix="compensated-") if path is None else None
        )
        self._path = Path(self._own.name if self._own else path)  # type: ignore[arg-type]
        self._path.mkdir(parents=True, exist_ok=True)
        self._number = {matrix.name: i for i, matrix in enumerate(matrices)}
        network = {
            m.name: [*m.weight.shape, _digest(m.parameter.detach())] for m in matrices
        }
        self._check(
            "network.json",
            {"damping": settings.damping, "matrices": network},
            "another network or damping",
        )
        if (self._path / "run.json").exists() and self._read("run.json")[
            "settings"
        ] != settings.to_mapping():
            made = (*self._path.glob("*.packed"), *self._path.glob("*.latents"))
            for file in (*made, self._path / "run.json"):
                file.unlink()
        if not (self._path / "run.json").exists():
            self._write("run.json", {"settings": settings.to_mapping()})

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *of_error: object) -> None:
        if self._own is not None:
            self._own.cleanup()

    def _check(self, name: str, facts: Mapping[str, Any], what: str) -> None:
        if not (self._path / name).exists():
            self._write(name, facts)
        elif self._read(name) != facts:
            raise ValueError(
                f"{self._path} holds a run of {what}; give another folder, or remove this one"
            )

    def _read(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._path / name).read_text())
        return found

    def _write(self, name: str, facts: Mapping[str, Any]) -> None:
        (self._path / f"{name}.new").write_text(json.dumps(facts))
        os.replace(self._path / f"{name}.new", self._path / name)

    def _file(self, matrix: Matrix, kind: str) -> Path:
        return self._path / f"{self._number[matrix.name]:05}.{kind}"

    def _put(self, matrix: Matrix, kind: str, content: Mapping[str, Any]) -> None:
        file = self._file(matrix, kind)
        torch.save(dict(content), file.with_suffix(".new"))
        os.replace(file.with_suffix(".new"), file)

    def partial(self) -> PartialSums | None:
        """The sums of a pass that was stopped, where the folder stays."""
        return None if self._own else PartialSums(self._path / "statistics.partial")

    def has_statistics(self, matrix: Matrix) -> bool:
        return self._file(matrix, "statistics").exists()

    def put_statistics(self, matrix: Matrix, rows: Tensor, upper: Tensor) -> None:
        self._put(
            matrix, "statistics", {"rows": rows.cpu(), "upper": upper.float().cpu()}
        )

    def statistics(self, matrix: Matrix) -> Measured:
        found = torch.load(
            self._file(matrix, "statistics"),
            weights_only=True,
            map_location=matrix.parameter.device,
        )
        return Measured(found["rows"], found["upper"])

    def put_packed(
        self, matrix: Matrix, packed: CompressedTensor, latents: Tensor | None = None
    ) -> None:
        if latents is not None:
            self._put(matrix, "latents", {"latents": latents.cpu()})
        self._put(matrix, "packed", {part: getattr(packed, part) for part in PARTS})

    def latents(self, matrix: Matrix) -> Tensor | None:
        """What was rounded, in steps, or None where it was not kept."""
        file = self._file(matrix, "latents")
        if not file.exists():
            return None
        found: Tensor = torch.load(file, weights_only=True)["latents"]
        return found

    def packed(self, matrix: Matrix) -> CompressedTensor | None:
        """The matrix as it was packed, or None."""
        file = self._file(matrix, "packed")
        if not file.exists():
            return None
        parts = torch.load(file, weights_only=True)
        return CompressedTensor(shape=tuple(parts["codes"].shape), **parts)

    def constant(self) -> float | None:
        return self._read("run.json").get("constant")

    def put_constant(self, constant: float) -> None:
        self._write("run.json", self._read("run.json") | {"constant": constant})


def _digest(weight: Tensor) -> str:
    """Of the bits: a sum of them would depend on the number of threads."""
    plain = weight.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(plain.data, digest_size=16).hexdigest()
