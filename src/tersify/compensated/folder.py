"""What a run has finished, on disk: it goes on there after it was stopped, and holds
one matrix in memory at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tersify.compensated.matrices import Matrix
from tersify.compensated.partial import PartialSums
from tersify.compensated.settings import Compensation
from tersify.tensor import CompressedTensor

# what torch says of a file that is cut off or was changed
DAMAGE = (
    RuntimeError,
    EOFError,
    pickle.UnpicklingError,
    json.JSONDecodeError,
    UnicodeDecodeError,
)
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

    Without a path the files live as long as the run. `data` is what the statistics are
    of beside the matrices: a folder serves one calibration. Statistics do not depend on the
    settings beyond their damping, so that a folder serves many settings: only packed
    forms are made anew.
    """

    def __init__(
        self,
        path: str | Path | None,
        settings: Compensation,
        matrices: Sequence[Matrix],
        data: Mapping[str, Any],
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
        about = {"damping": settings.damping, "matrices": network}
        if not (self._path / "network.json").exists():
            self._write("network.json", about)
        self._check("network.json", about, "another network or damping")
        if not any(self._path.glob("*.statistics")):
            self._write("data.json", data)
        self._check("data.json", data, "other texts, frequencies or precision")
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
        if not (self._path / name).exists() or self._read(name) != facts:
            raise ValueError(
                f"{self._path} holds a run of {what}; give another folder, or remove this one"
            )

    def _read(self, name: str) -> dict[str, Any]:
        return read_json(self._path / name)

    def _write(self, name: str, facts: Mapping[str, Any]) -> None:
        (self._path / f"{name}.new").write_text(json.dumps(facts))
        os.replace(self._path / f"{name}.new", self._path / name)

    def _file(self, matrix: Matrix, kind: str) -> Path:
        return self._path / f"{self._number[matrix.name]:05}.{kind}"

    def _get(self, matrix: Matrix, kind: str, device: Any = "cpu") -> dict[str, Any]:
        file = self._file(matrix, kind)
        with _whole(file):
            found: dict[str, Any] = torch.load(
                file, weights_only=True, map_location=device
            )
            return found

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
        found = self._get(matrix, "statistics", matrix.parameter.device)
        return Measured(found["rows"], found["upper"])

    def put_packed(
        self, matrix: Matrix, packed: CompressedTensor, latents: Tensor | None = None
    ) -> None:
        if latents is not None:
            self._put(matrix, "latents", {"latents": latents.cpu()})
        self._put(matrix, "packed", {part: getattr(packed, part) for part in PARTS})

    def latents(self, matrix: Matrix) -> Tensor | None:
        """What was rounded, in steps, or None where it was not kept."""
        if not self._file(matrix, "latents").exists():
            return None
        found: Tensor = self._get(matrix, "latents")["latents"]
        return found

    def packed(self, matrix: Matrix) -> CompressedTensor | None:
        """The matrix as it was packed, or None."""
        if not self._file(matrix, "packed").exists():
            return None
        parts = self._get(matrix, "packed")
        return CompressedTensor(shape=tuple(parts["codes"].shape), **parts)

    def constant(self) -> float | None:
        return self._read("run.json").get("constant")

    def put_constant(self, constant: float) -> None:
        self._write("run.json", self._read("run.json") | {"constant": constant})


def read_json(file: Path) -> dict[str, Any]:
    with _whole(file):
        found = json.loads(file.read_text())
        if not isinstance(found, dict):
            raise EOFError
        return found


@contextlib.contextmanager
def _whole(file: Path) -> Iterator[None]:
    """One sentence where a file of such a folder is damaged."""
    try:
        yield
    except DAMAGE:
        raise ValueError(
            f"{file} is damaged; remove {file.parent}, or give another folder"
        ) from None


def _digest(weight: Tensor) -> str:
    """Of the bits: a sum of them would depend on the number of threads."""
    plain = weight.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(plain.data, digest_size=16).hexdigest()
