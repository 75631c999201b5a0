"""Where data sets lie, and the errors for what is not there."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def data_root(root: str | Path | None) -> Path:
    """The argument, else the environment's TERSIFY_DATA, else ./data."""
    return Path(root or os.environ.get("TERSIFY_DATA") or "data")


def first_folder(root: Path, names: Iterable[str], what: str) -> Path:
    """The first of `names` that is a folder under `root`."""
    names = list(names)
    for name in names:
        if (root / name).is_dir():
            return root / name
    state = "has no such folder" if root.is_dir() else "does not exist"
    raise ValueError(
        f"{what} needs the folder {' or '.join(names)} under {str(root)!r}, which {state}; "
        f"put the official files there, or name another root (--data-root, the argument `root`, or TERSIFY_DATA)"
    )


def read_exactly(path: Path, size_bytes: int) -> bytes:
    """The whole file, which must have the size of the official one."""
    check_file(path)
    found = path.stat().st_size
    if found != size_bytes:
        raise ValueError(
            f"{str(path)!r} has {found} bytes and must have {size_bytes}: it is damaged or cut short; fetch it again"
        )
    return path.read_bytes()


def check_file(path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"{str(path)!r} is missing; fetch the data set again")
