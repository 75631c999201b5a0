"""Kernels of a decoding step: attention to a cache, and products with a norm before and
a residual behind.
"""

from __future__ import annotations

import emulator
import pytest
import torch

from tersify.runtime.check import difference
from tersify.runtime.gpu import attention, ternary
from tersify.runtime.gpu.launch import Tiling
from tersify.runtime.gpu.rounding import Before, reference

pytestmark = pytest.mark.usefixtures("emulated")


@pytest.mark.parametrize("now", [0, 1, 31, 32, 70])
def test_a_token_attends_to_all_before_it_and_joins_the_cache(now: int) -> None:
    heads, groups, room, size = 4, 2, 72, 64
    torch.manual_seed(now)
    qkv = torch.randn((heads + 2 * groups) * size).bfloat16()
    turns = torch.rand(room, size // 2) * 6
    angles = (turns.cos(), turns.sin())
    keys, values = (torch.randn(groups, room, size).bfloat16() for _ in range(2))
    position = torch.tensor([now], dtype=torch.int32)
    wanted, wanted_keys, wanted_values = attention.reference(
        qkv, angles, keys, values, position
    )
    out = torch.full((heads * size,), float("nan"), dtype=torch.bfloat16)
    emulator.run(attention.launch(qkv, angles, keys, values, position, out))
    assert difference(out.double(), wanted) <= 8e-3
    assert difference(keys, wanted_keys) <= 8e-3
    assert torch.equal(values, wanted_values)


@pytest.mark.parametrize("gated", [False, True])
def test_a_product_norms_rounds_and_adds_by_itself(gated: bool) -> None:
    rows, features = 20, 256
    torch.manual_seed(1)
    signs = torch.randint(-1, 2, (rows, features))
    x, factor = (torch.randn(1, features).bfloat16() for _ in range(2))
    before = Before(
        gain=torch.rand(features) + 0.5, eps=1e-5, factor=factor if gated else None
    )
    scale, residual = torch.rand(rows) + 0.5, torch.randn(1, rows).bfloat16()
    out = torch.full((1, rows), float("nan"), dtype=torch.bfloat16)
    emulator.run(
        ternary.launch(
            ternary.pack(signs),
            x,
            scale,
            None,
            out,
            Tiling(feature_warps=2, in_flight=2),
            round_here=True,
            before=before,
            residual=residual,
        )
    )
    steps = reference(before.reference(x), swapped=False)
    wanted = (
        steps.steps.double() @ signs.double().T
    ) * steps.scale.double() * scale + residual.double()
    assert difference(out.double(), wanted) <= 1.2e-2  # a step more or less, and bf16
