"""How fast and how small dense floats are stored, beside ZipNN and zstd.

`python benchmarks/dense_planes.py [--quick] [--json FILE]`. The weights are those of
the MiniLM encoder where its package is installed, and else normal noise of a layer's
size. Everything runs on one core; speeds are bytes of the dense tensor for each second
of CPU time, the best of several rounds, and shares are of the dense bytes. The codec is
timed in memory, as the peers are; `file` is the size of a whole file.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
import zstandard
from networks_of_others import minilm
from torch import Tensor

from tersify import codec
from tersify.codec.arrays import decode_arrays, encode_arrays
from tersify.codec.layout import BLOCK_ELEMENTS

# Encodes, decodes into one or several arrays, and tells the size of what was encoded.
Coder = tuple[
    Callable[[], Any], Callable[[Any], list[np.ndarray]], Callable[[Any], int]
]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def weights() -> tuple[str, Tensor]:
    state = minilm()
    if state is None:
        return "noise", torch.randn(
            1 << 24, generator=torch.Generator().manual_seed(0)
        ) * 0.02
    return "minilm", torch.cat(
        [t.float().flatten() for t in state.values() if t.ndim == 2]
    )


def fastest(work: Callable[[], Any], rounds: int) -> tuple[float, Any]:
    """Seconds of CPU time, and what it made."""
    best, made = float("inf"), None
    for _ in range(rounds):
        start = time.process_time()
        made = work()
        best = min(best, time.process_time() - start)
    return best, made


def ours(data: np.ndarray, width: int) -> Coder:
    step = BLOCK_ELEMENTS * width
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    arrays = [[("d", len(piece) // width)] for piece in pieces]

    def encode() -> list[tuple[str, bytes]]:
        return [
            encode_arrays(p, a, width, is_float=True)
            for p, a in zip(pieces, arrays, strict=True)
        ]

    def decode(coded: list[tuple[str, bytes]]) -> list[np.ndarray]:
        return [
            decode_arrays(n, c, a, width, is_float=True)
            for (n, c), a in zip(coded, arrays, strict=True)
        ]

    return encode, decode, lambda coded: sum(len(each) for _, each in coded)


def zstd(data: np.ndarray, level: int) -> Coder:
    raw = data.tobytes()
    return (
        lambda: zstandard.ZstdCompressor(level=level).compress(raw),
        lambda coded: [
            np.frombuffer(zstandard.ZstdDecompressor().decompress(coded), np.uint8)
        ],
        len,
    )


def zipnn(data: np.ndarray, name: str) -> Coder | None:
    if util.find_spec("zipnn") is None:
        return None
    from zipnn import ZipNN

    kind = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[name]
    coder = ZipNN(input_format="byte", bytearray_dtype=kind, threads=1)
    raw = data.tobytes()
    # It may work in the buffer that it is given, so that each round gets its own.
    return (
        lambda: coder.compress(bytearray(raw)),
        lambda coded: [np.frombuffer(coder.decompress(coded), np.uint8)],
        len,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="bf16 of a part of the weights, few rounds"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 3 if chosen.quick else 9
    source, dense = weights()
    dense = dense[: 1 << 22] if chosen.quick else dense[: 1 << 24]
    figures: dict[str, float] = {"elements": dense.numel()}
    for name in ("bf16",) if chosen.quick else DTYPES:
        tensor = dense.to(DTYPES[name])
        data = tensor.view(torch.uint8).numpy()
        coders = {
            "tersify": ours(data, tensor.dtype.itemsize),
            "zipnn": zipnn(data, name),
            "zstd3": zstd(data, 3),
        }
        for peer, coder in coders.items():
            if coder is None:
                continue
            encode, decode, size = coder
            encode_s, coded = fastest(encode, rounds)
            decode_s, back = fastest(
                lambda decode=decode, coded=coded: decode(coded), rounds
            )
            if not np.array_equal(np.concatenate(back), data):
                raise RuntimeError(f"{peer} did not give {name} back")
            found = {
                "percent": 100 * size(coded) / len(data),
                "encode_mb_s": len(data) / encode_s / 1e6,
                "decode_mb_s": len(data) / decode_s / 1e6,
            }
            figures |= {
                f"{name}_{peer}_{what}": round(value, 2)
                for what, value in found.items()
            }
            print(
                f"{name} {peer:8}"
                + "".join(f" {what} {value:9.2f}" for what, value in found.items()),
                flush=True,
            )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "dense.terse"
            size = codec.save({"w": tensor}, path)
            figures[f"{name}_file_percent"] = round(100 * size / len(data), 2)
    versions = {"torch": torch.__version__, "zstandard": metadata.version("zstandard")}
    if util.find_spec("zipnn") is not None:
        versions["zipnn"] = metadata.version("zipnn")
    common.report(
        "dense_planes",
        figures,
        json_path=chosen.json,
        versions=versions,
        threads=1,
        weights=source,
    )


if __name__ == "__main__":
    main()
