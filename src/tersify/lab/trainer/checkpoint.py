"""Checkpoints: written whole or not at all, and read without running anything they
hold.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tersify.codec.atomic import replacing

_PARTS = {
    "epoch": int,
    "history": list,
    "model": dict,
    "optimizer": dict,
    "session": dict,
    "average": dict,
}


class CheckpointWriter:
    """Writes checkpoints in the background, one at a time; the newest replaces the one
    before it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._worker = ThreadPoolExecutor(max_workers=1)
        self._pending: Future[None] | None = None

    def write(self, state: dict[str, Any]) -> None:
        """Takes a copy of every tensor now; the file is complete after `wait` or the
        next `write`.
        """
        # At most one in flight, so memory holds one copy; an error of the last one
        # shows here.
        self.wait()
        self._pending = self._worker.submit(self._save, snapshot(state))

    def wait(self) -> None:
        if self._pending is not None:
            self._pending.result()

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._worker.shutdown()

    def _save(self, state: dict[str, Any]) -> None:
        with replacing(self._path) as file:
            torch.save(state, file)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Tensors and plain values only: torch's restricted loader refuses everything else."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the loader raises many kinds for a damaged file
        raise ValueError(
            f"{path} is no checkpoint of a training run ({type(error).__name__}); "
            "delete the run directory and start again"
        ) from error
    if not isinstance(state, dict) or any(
        not isinstance(state.get(key), kind) for key, kind in _PARTS.items()
    ):
        raise ValueError(
            f"{path} is no checkpoint of a training run: it must hold {', '.join(_PARTS)}; "
            "start again in another directory"
        )
    return state


def snapshot(value: Any) -> Any:
    """A deep copy on the CPU of nested dicts, lists and tensors."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: snapshot(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(snapshot, value))
    return value
