"""Memory images: one hexadecimal word a line for $readmemh, and packed bytes for a
flash chip.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from tersify.export.fpga.circuit import Circuit
from tersify.runtime.fixed import FixedLayer, Ints
from tersify.tensor import pack_bits


def write_words(
    path: Path, integers: npt.NDArray[np.integer], width: int, lanes: int = 1
) -> None:
    """Each run of `lanes` integers as one word, the first in its lowest bits, in two's
    complement of `width` bits.
    """
    # Hexadecimal digits of a word, rounded up.
    digits = (width * lanes + 3) // 4
    # The mask turns negative integers into two's complement. Python integers from here
    # on, because a word may have more than 64 bits.
    parts = (integers.reshape(-1, lanes).astype(np.int64) & ((1 << width) - 1)).tolist()
    words = (
        sum(part << (lane * width) for lane, part in enumerate(row)) for row in parts
    )
    path.write_text("".join(f"{word:0{digits}x}\n" for word in words), encoding="ascii")


def read_words(path: Path, width: int) -> Ints:
    """The inverse of `write_words` for signed integers, one a word."""
    words = np.array(
        [int(line, 16) for line in path.read_text(encoding="ascii").split()], np.int64
    )
    return np.where(words >= 1 << (width - 1), words - (1 << width), words)


def table_entries(layer: FixedLayer) -> npt.NDArray[np.int64]:
    """{internal, word} for each code; the word is two's complement, or its magnitude
    where the code has the sign.
    """
    form = layer.table.format
    words = layer.table.words[0]
    stored = np.abs(words) if form.sign_in_code else words & ((1 << form.m) - 1)
    return stored | (layer.table.internal[0].astype(np.int64) << form.m)


def write_layer(folder: Path, stem: str, circuit: Circuit) -> None:
    layer, lanes, form = circuit.layer, circuit.lanes, circuit.layer.table.format
    write_words(folder / f"{stem}_lut.mem", table_entries(layer), form.m + 1)
    # The last group is filled up with neurons of code 0, whose outputs nobody reads.
    missing = -layer.outputs % lanes
    by_group = np.pad(layer.table.codes, ((0, missing), (0, 0))).reshape(
        -1, lanes, layer.inputs
    )
    write_words(
        folder / f"{stem}_codes.mem", by_group.transpose(0, 2, 1), form.n, lanes
    )
    packed = pack_bits(torch.from_numpy(layer.table.codes), form.n)
    (folder / f"{stem}_codes.bin").write_bytes(packed.numpy().tobytes())
    write_words(folder / f"{stem}_bias.mem", layer.bias, layer.bias_format.width)
