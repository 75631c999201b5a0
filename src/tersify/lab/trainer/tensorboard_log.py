"""TensorBoard, on request. The only file that imports it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Board:
    """Writes the figures of each epoch as scalars; does nothing unless enabled."""

    def __init__(self, path: Path, *, enabled: bool) -> None:
        self._path = path
        self._writer_type = _summary_writer() if enabled else None
        self._writer: Any = None

    def __enter__(self) -> Board:
        if self._writer_type is not None:
            self._writer = self._writer_type(str(self._path))
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, row: Mapping[str, Any]) -> None:
        if self._writer is not None:
            for key, value in row.items():
                if key != "epoch":
                    self._writer.add_scalar(key, value, row["epoch"])


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError(
            "TensorBoard is not installed; run `pip install tersify[tensorboard]` or leave --tensorboard out"
        ) from error
    return SummaryWriter
