"""C++ engines built by hand, without a plan: what the extension itself promises."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

runtime: ModuleType = importlib.import_module("tersify._runtime")
CPU_ISA: str = runtime.isas()[-1]
THREE = [3, 3, 1, 1, 1, 1, 1, 1]
ONE = [1, 1, 1, 1, 0, 0, 1, 1]
HALVES = [2, 2, 2, 2, 0, 0, 1, 1]


def workspace(isa: str = CPU_ISA, threads: int = 1) -> Any:
    return runtime.Workspace(isa, threads)


def spans(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    return [(t.data_ptr(), t.numel()) for t in tensors]


def run(
    engine: Any, inputs: Sequence[Tensor], *shapes: tuple[int, ...]
) -> list[Tensor]:
    """New outputs of these shapes; what no step writes stays NaN."""
    outputs = [torch.full(shape, math.nan) for shape in shapes]
    assert engine.run(spans(inputs), spans(outputs))
    return outputs


def conv_weights(
    space: Any, weight: Tensor, window: Sequence[int] = THREE, **more: Any
) -> Any:
    options = {
        "groups": 1,
        "kind": runtime.ValueKind.FLOAT,
        "table": [],
        "lane": runtime.Lane.F32,
        "output": (8, 8),
    }
    return runtime.pack_conv(space, weight, list(window), **{**options, **more})


def linear_weights(space: Any, weight: Tensor) -> Any:
    return runtime.pack_linear(space, weight, runtime.ValueKind.FLOAT, [])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
