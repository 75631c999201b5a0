"""TensorBoard, on request. The only file that imports it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Board:
    """Writes the figures of each epoch as scalars; does nothing unless enabled."""

    def __init__(self, path: Path, *, enabled: bool) -> None:
        self._writer: Any = None
        if not enabled:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(
                "TensorBoard is not installed; run `pip install tersify[tensorboard]` or leave --tensorboard out"
            ) from error
        self._writer = SummaryWriter(str(path))

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, row: Mapping[str, Any]) -> None:
        if self._writer is not None:
            for key, value in row.items():
                if key != "epoch":
                    self._writer.add_scalar(key, value, row["epoch"])
