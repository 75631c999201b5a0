"""The reader of the package gguf, with one sentence for a file that it cannot read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

MAGIC = b"GGUF"
# what the package says of damaged files is of its own arrays, and helps nobody
DAMAGE = (
    ValueError,
    IndexError,
    KeyError,
    OverflowError,
    TypeError,
    AttributeError,
    MemoryError,
)


def read_gguf(path: Path) -> Any:
    """An open GGUF file whose tensors are all there, of types that llama.cpp has."""
    try:
        import gguf
    except ImportError:
        raise ValueError(
            "GGUF files need the package gguf; pip install 'tersify[gguf]'"
        ) from None
    with path.open("rb") as file:
        begins = file.read(len(MAGIC))
    cut = f"{path} is damaged, cut off or no GGUF file"
    if begins != MAGIC:
        raise ValueError(f"{cut}: it does not begin with GGUF")
    try:
        reader = gguf.GGUFReader(path)
    except DAMAGE as error:
        if found := re.search(r"(\d+)\)? is not a valid GGMLQ", str(error)):
            raise ValueError(
                f"{path} holds tensors of the unknown type {found[1]}; convert it to a type that llama.cpp has"
            ) from None
        size = path.stat().st_size
        raise ValueError(f"{cut}: its header does not fit its {size:,} bytes") from None
    _check_types(gguf, reader, path)
    return reader


def _check_types(gguf: Any, reader: Any, path: Path) -> None:
    kinds = gguf.GGMLQuantizationType
    known = {kinds.F32, kinds.F16, *gguf.quants._type_traits}
    if lost := sorted(
        {t.tensor_type.name for t in reader.tensors} - {k.name for k in known}
    ):
        raise ValueError(
            f"{path} holds tensors of type {', '.join(lost)}, which cannot be read; convert it to another type"
        )
