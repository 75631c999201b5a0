"""`save`: a packed model becomes groups of pooled codes and pooled arrays, and one directory."""

from __future__ import annotations

import os
import platform
import time
import zlib
from collections.abc import Mapping
from importlib import metadata as installed
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tersify.codec.codes import encode_codes
from tersify.codec.container import write_sections
from tersify.codec.directory import DTYPE_NAMES, Directory, Entry, Group, Stored, pack_directory
from tersify.codec.floats import encode_planes
from tersify.codec.layout import BLOCK_WEIGHTS, Box, blocks_of
from tersify.tensor import CompressedTensor

VERSION = "1.0"
POOL_BYTES = 1 << 26


def save(
    model: Mapping[str, CompressedTensor | Tensor],
    path: str | os.PathLike[str],
    *,
    floats: Literal["as-is", "fp16"] = "as-is",
) -> int:
    """Write a packed model, or any mapping `name → CompressedTensor | Tensor`; returns the file's bytes.

    Lossless by default. `floats="fp16"` stores 32-bit floats (codebooks, scales, dense tensors) in
    half precision; they are given back as 32-bit floats with the rounded values.
    """
    if floats not in ("as-is", "fp16"):
        raise ValueError(f"floats must be 'as-is' or 'fp16', got {floats!r}")
    plan = _Plan(half=floats == "fp16")
    entries = [plan.add(name, tensor) for name, tensor in model.items()]
    sections, groups = plan.encode()
    directory = Directory(
        entries=entries,
        groups=groups,
        aliases=dict(getattr(model, "aliases", {})),
        recipe=getattr(model, "recipe", None),
        metadata=dict(getattr(model, "metadata", {})),
        provenance=getattr(model, "provenance", None) or provenance(),
    )
    return write_sections(path, {"directory": pack_directory(directory), **sections}, VERSION)


def provenance() -> dict[str, Any]:
    """What made the file, and when."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "tersify": _version("tersify"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def _version(package: str) -> str:
    try:
        return installed.version(package)
    except installed.PackageNotFoundError:
        return "unknown"


class _Plan:
    """Decides which group each part goes to, and keeps what the group must hold."""

    def __init__(self, *, half: bool) -> None:
        self._half = half
        self._kinds: list[int] = []  # per group: the levels of its codes, 0 for arrays
        self._codes: dict[int, list[tuple[Box, np.ndarray]]] = {}
        self._arrays: dict[int, list[tuple[str, int, bytes]]] = {}
        self._open: dict[int, tuple[int, int]] = {}  # kind → (the pool that still has room, its size)

    def add(self, name: str, tensor: CompressedTensor | Tensor) -> Entry:
        if not isinstance(name, str):
            raise ValueError(f"tensor names are text, got {name!r}")
        if isinstance(tensor, CompressedTensor):
            return self._add_compressed(name, tensor)
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name!r} must be a CompressedTensor or a Tensor, got {type(tensor).__name__}")
        return Entry(name=name, shape=tuple(tensor.shape), dense=self._store(name, tensor))

    def _add_compressed(self, name: str, tensor: CompressedTensor) -> Entry:
        flat = tensor.codes.detach().cpu().contiguous().reshape(-1).numpy()
        groups = []
        at = 0
        for box in blocks_of(tensor.shape):
            group = self._pool(tensor.levels or 2, box.weights, BLOCK_WEIGHTS)
            self._codes.setdefault(group, []).append((box, flat[at : at + box.weights]))
            groups.append(group)
            at += box.weights
        parts = {"codebook": tensor.codebook, "values": tensor.values, "scale": tensor.scale}
        stored = {part: self._store(name, t) for part, t in parts.items() if t is not None}
        return Entry(
            name=name,
            shape=tensor.shape,
            code_groups=tuple(groups),
            axis=tensor.axis,
            format=dict(tensor.format),
            **stored,  # type: ignore[arg-type]
        )

    def _store(self, name: str, tensor: Tensor) -> Stored:
        if tensor.dtype not in DTYPE_NAMES:
            raise ValueError(
                f"{name!r} has dtype {tensor.dtype}; a .terse file holds {', '.join(DTYPE_NAMES.values())}"
            )
        given = DTYPE_NAMES[tensor.dtype]
        plain = tensor.detach().cpu()
        if self._half and plain.dtype == torch.float32:
            plain = plain.half()
            if not bool(torch.isfinite(plain).eq(torch.isfinite(tensor.detach().cpu())).all()):
                raise ValueError(f"{name!r} has values beyond the range of fp16; save with floats='as-is'")
        data = plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        group = self._pool(0, len(data), POOL_BYTES)
        self._arrays.setdefault(group, []).append((suffix(name), plain.dtype.itemsize, data))
        return Stored(shape=tuple(tensor.shape), dtype=DTYPE_NAMES[plain.dtype], given=given, group=group)

    def _pool(self, kind: int, size: int, limit: int) -> int:
        group, used = self._open.get(kind, (-1, limit))
        if group < 0 or used + size > limit:
            self._kinds.append(kind)
            group, used = len(self._kinds) - 1, 0
        self._open[kind] = (group, used + size)
        return group

    def encode(self) -> tuple[dict[str, bytes], list[Group]]:
        sections: dict[str, bytes] = {}
        groups = []
        for index, levels in enumerate(self._kinds):
            if levels:
                codec, data = encode_codes(self._codes.pop(index), levels)
            else:
                runs = sorted(self._arrays.pop(index), key=lambda run: run[0])
                codec, data = "planes", encode_planes([(width, raw) for _, width, raw in runs])
            sections[f"g{index}"] = data
            groups.append(Group(codec=codec, crc32=zlib.crc32(data)))
        return sections, groups


def suffix(name: str) -> str:
    """The last part of a dotted name: arrays of one kind lie together in their group."""
    return name.rpartition(".")[2]
