"""The compressors that a `.terse` file is measured against, each with the form of the
data that suits it best.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import lzma
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import zstandard
from torch import Tensor

from tersify.tensor import CompressedTensor, bits_for, pack_bits

Peer = Callable[[bytes], int]


def peer_versions() -> dict[str, str]:
    found = {}
    for package in ("zstandard", "brotli", "nncodec", "onnxruntime", "openvino"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def peer_sizes(
    tensors: Mapping[str, CompressedTensor | Tensor], *, quick: bool
) -> dict[str, int]:
    """Per peer the bytes of all tensors together, the smallest over the forms they can
    be handed over in.
    """
    forms = list(_forms(list(tensors.values())))
    sizes = {
        name: min(peer(form) for form in forms)
        for name, peer in _general(quick=quick).items()
    }
    cabac = _deep_cabac()
    if cabac is not None and all(
        isinstance(t, CompressedTensor) for t in tensors.values()
    ):
        sizes["nncodec"] = sum(
            _cabac_bytes(cabac, t)
            for t in tensors.values()
            if isinstance(t, CompressedTensor)
        )
    return sizes


def coded_sizes(
    tensors: Mapping[str, CompressedTensor | Tensor], *, quick: bool
) -> dict[str, int]:
    """A whole network: codes by zstd-19 and by NNCodec's coder, in both the rest (dense
    floats, tables, and what a safetensors file says of every part) by zstd-19.
    """
    coded = [
        t
        for t in tensors.values()
        if isinstance(t, CompressedTensor) and t.codebook is not None
    ]
    rest = [t.detach() for t in tensors.values() if isinstance(t, Tensor) and t.numel()]
    rest += [t.codebook for t in coded if t.codebook is not None] + [
        t.scale for t in coded if t.scale is not None
    ]
    rest += [
        t.to_dense()
        for t in tensors.values()
        if isinstance(t, CompressedTensor) and t.codebook is None
    ]
    zstd = zstandard.ZstdCompressor(level=3 if quick else 19)
    others = [
        b"".join(t.numpy().tobytes() for t in rest),
        b"".join(_planes(t) for t in rest),
    ]
    besides = min(len(zstd.compress(form)) for form in others)
    besides += len(zstd.compress(_names(tensors)))
    sizes = {
        "zstd_19": besides
        + (min(len(zstd.compress(form)) for form in _forms(coded)) if coded else 0)
    }
    cabac = _deep_cabac()
    if cabac is not None and coded:
        sizes["nncodec"] = besides + sum(_cabac_bytes(cabac, t) for t in coded)
    return sizes


def _names(tensors: Mapping[str, CompressedTensor | Tensor]) -> bytes:
    """The header of a safetensors file of these codes, tables and arrays, without
    offsets, which follow from the shapes.
    """
    parts: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor):
            parts[name] = tensor
            continue
        parts[f"{name}.codes"] = tensor.codes
        for part in ("codebook", "values", "scale", "column_scale"):
            if getattr(tensor, part) is not None:
                parts[f"{name}.{part}"] = getattr(tensor, part)
    told = {
        n: {"dtype": str(t.dtype)[6:], "shape": list(t.shape)} for n, t in parts.items()
    }
    return json.dumps(told, separators=(",", ":")).encode()


def _planes(tensor: Tensor) -> bytes:
    array = tensor.reshape(-1).contiguous().numpy()
    return array.view(np.uint8).reshape(array.size, -1).T.tobytes()


def _forms(tensors: list[CompressedTensor | Tensor]) -> Iterator[bytes]:
    """Codes as one byte each, packed to their bits, and three a byte; dense arrays as
    they are and as byte planes.
    """
    codes = [t.codes.reshape(-1) for t in tensors if isinstance(t, CompressedTensor)]
    if codes:
        levels = max(t.levels or 2 for t in tensors if isinstance(t, CompressedTensor))
        yield b"".join(each.numpy().tobytes() for each in codes)
        yield b"".join(
            pack_bits(each, bits_for(levels)).numpy().tobytes() for each in codes
        )
        if levels <= 6:  # three codes a byte: a row of a 3×3 kernel
            joined = np.concatenate(
                [np.resize(each.numpy(), (each.numel() + 2) // 3 * 3) for each in codes]
            )
            yield (
                (joined.reshape(-1, 3) @ np.array([levels**2, levels, 1]))
                .astype(np.uint8)
                .tobytes()
            )
        return
    arrays = [t.reshape(-1).numpy() for t in tensors if isinstance(t, Tensor)]
    joined = np.concatenate(arrays)
    yield joined.tobytes()
    yield joined.view(np.uint8).reshape(joined.size, -1).T.tobytes()


def _general(*, quick: bool) -> dict[str, Peer]:
    peers: dict[str, Peer] = {
        "zstd_19": lambda data: len(zstandard.ZstdCompressor(level=19).compress(data)),
        "xz_9e": lambda data: len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)),
    }
    if importlib.util.find_spec("brotli") is not None:
        brotli: Any = importlib.import_module("brotli")
        quality = 9 if quick else 11
        peers[f"brotli_{quality}"] = lambda data: len(
            brotli.compress(data, quality=quality, lgwin=24)
        )
    return peers


def _deep_cabac() -> ModuleType | None:
    """NNCodec's arithmetic coder alone: the package around it wants an old numpy and a
    computer vision library.
    """
    package = importlib.util.find_spec("nncodec")
    if package is None or not package.submodule_search_locations:
        return None
    found = sorted(
        Path(package.submodule_search_locations[0]).glob("extensions/deepCABAC*.so")
    )
    spec = (
        importlib.util.spec_from_file_location("deepCABAC", found[0]) if found else None
    )
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _cabac_bytes(cabac: ModuleType, tensor: CompressedTensor) -> int:
    """One layer as NNCodec codes it: levels as signed numbers around the one nearest to
    zero, contexts optimised.
    """
    codes = tensor.codes.numpy().astype(np.int32)
    assert tensor.codebook is not None
    rank = tensor.codebook.argsort().argsort().numpy().astype(np.int32)
    signed = rank[codes] - rank[int(tensor.codebook.abs().argmin())]
    signed = np.ascontiguousarray(signed.reshape(signed.shape[0], -1))
    encoder = cabac.Encoder()
    encoder.initCtxModels(10, 1)
    row_skip = np.zeros(signed.shape[0], np.int32)
    encoder.encodeLayer(
        signed,
        0,
        0,
        0,
        0,
        0,
        row_skip,
        cabac.HdspMode.AlwaysOff,
        np.zeros(2, np.int8),
        0,
        0,
    )
    return len(encoder.finish().tobytes())
