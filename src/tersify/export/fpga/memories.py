"""Memory images: one hexadecimal word a line for $readmemh, and packed bytes for a flash chip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from tersify.runtime.fixed import FixedLayer
from tersify.tensor import pack_bits


def write_words(path: Path, integers: npt.NDArray[np.integer], width: int) -> None:
    """Each integer in two's complement of `width` bits, one a line."""
    digits = (width + 3) // 4
    words = integers.reshape(-1).astype(np.int64) & ((1 << width) - 1)
    path.write_text("".join(f"{word:0{digits}x}\n" for word in words.tolist()), encoding="ascii")


def table_entries(layer: FixedLayer) -> npt.NDArray[np.int64]:
    """{internal, word} for each code; the word is two's complement, or its magnitude where the code has the sign."""
    form = layer.table.format
    words = layer.table.words[0]
    stored = np.abs(words) if form.sign_in_code else words & ((1 << form.m) - 1)
    return stored | (layer.table.internal[0].astype(np.int64) << form.m)


def write_layer(folder: Path, stem: str, layer: FixedLayer) -> None:
    form = layer.table.format
    write_words(folder / f"{stem}_lut.mem", table_entries(layer), form.m + 1)
    write_words(folder / f"{stem}_codes.mem", layer.table.codes, form.n)
    packed = pack_bits(torch.from_numpy(layer.table.codes), form.n)
    (folder / f"{stem}_codes.bin").write_bytes(packed.numpy().tobytes())
    write_words(folder / f"{stem}_bias.mem", layer.bias, layer.bias_format.width)
