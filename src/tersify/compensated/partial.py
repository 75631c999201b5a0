"""The sums of a pass over calibration batches that was stopped, so that it goes on
there.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

LEAST_SECONDS = 1.0  # between two times of keeping
MOST_OF_TIME = 0.05  # that keeping may take


class Batches:
    """Which batches were seen: those of another text must not go on with the sums."""

    def __init__(self) -> None:
        self.count = 0
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, inputs: Any, targets: Any) -> None:
        self.count += 1
        for leaf in tree_leaves((inputs, targets)):
            if isinstance(leaf, Tensor):
                self._hash.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
                plain = leaf.detach().cpu().contiguous().reshape(-1)
                self._hash.update(plain.view(torch.uint8).numpy().tobytes())
            else:
                self._hash.update(repr(leaf).encode())

    def digest(self) -> str:
        return self._hash.hexdigest()


def digest_of(batches: Iterable[tuple[Any, Any]]) -> str:
    seen = Batches()
    for inputs, targets in batches:
        seen.add(inputs, targets)
    return seen.digest()


class PartialSums:
    """One file with the sums after some whole batch.

    It is written as often as that takes a twentieth of the time. What is read is bit for
    bit what was kept, so that a pass which goes on ends as one that was never stopped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = time.monotonic()
        self._wait = LEAST_SECONDS

    def is_due(self) -> bool:
        return time.monotonic() - self._last >= self._wait

    def keep(
        self, sums: Mapping[str, Mapping[str, Any]], seen: Batches, *, bf16: bool
    ) -> None:
        begun = time.monotonic()
        content = {
            "sums": {name: dict(each) for name, each in sums.items()},
            "batches": seen.count,
            "digest": seen.digest(),
            "bf16": bf16,
        }
        fresh = self._path.with_suffix(".new")
        torch.save(content, fresh)
        os.replace(fresh, self._path)
        self._last = time.monotonic()
        self._wait = max(LEAST_SECONDS, (self._last - begun) / MOST_OF_TIME)

    def found(self, names: set[str], *, bf16: bool) -> dict[str, Any] | None:
        """What was kept for these matrices, or None."""
        if not self._path.exists():
            return None
        try:
            kept: dict[str, Any] = torch.load(
                self._path, weights_only=True, map_location="cpu"
            )
        except (RuntimeError, OSError, ValueError, EOFError):
            return None  # damaged: the pass begins anew
        usable = names <= set(kept["sums"]) and kept["bf16"] == bf16
        return kept if usable else None

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
