"""The reader of the package gguf, with one sentence for a file that it cannot read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def read_gguf(path: Path) -> Any:
    """An open GGUF file whose tensors are all there, of types that llama.cpp has."""
    try:
        import gguf
    except ImportError:
        raise ValueError(
            "GGUF files need the package gguf; pip install 'tersify[gguf]'"
        ) from None
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError, TypeError) as error:
        if found := re.search(r"(\d+)\)? is not a valid GGMLQ", str(error)):
            raise ValueError(
                f"{path} holds tensors of the unknown type {found[1]}; convert it to a type that llama.cpp has"
            ) from None
        raise ValueError(
            f"{path} is damaged, cut off or no GGUF file: {error}"
        ) from None
    return reader
