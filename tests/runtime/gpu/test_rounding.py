"""Vectors rounded by the CUDA kernel: the whole numbers and scales of the CPU's
kernels, and so the same sums.
"""

from __future__ import annotations

import emulator
import pytest
import torch
from torch import Tensor, nn

import tersify
from tersify.runtime.gpu import dense, rounding
from tersify.runtime.gpu.packed import TABLE, TERNARY, in_whole_steps, pack
from tersify.runtime.gpu.products import INT8, Settings, product, table_of
from tersify.runtime.ops import LinearKernel
from tersify.runtime.weights import classified_by_torch

pytestmark = pytest.mark.usefixtures("emulated")


def kernel(x: Tensor, *, swapped: bool) -> rounding.Rounded:
    made = rounding.empty(len(x), x.shape[1], x.device)
    emulator.run(rounding.launch(x, made, swapped=swapped))
    return made


def hostile(dtype: torch.dtype) -> Tensor:
    """Rows of ordinary, equal, tiny, huge, zero and odd numbers, and of ties between
    two steps.
    """
    x = torch.randn(9, 24, generator=torch.Generator().manual_seed(0))
    x[1], x[2], x[3], x[4] = 0.0, 1e-38, 3e38, -7.0
    x[5] = torch.arange(24) - 11.5
    x[5, 0] = 127
    x[6, 3], x[7, 4], x[8, 5] = float("inf"), float("nan"), -float("inf")
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("swapped", [False, True])
def test_steps_scales_and_sums_are_those_of_the_reference(
    dtype: torch.dtype, swapped: bool
) -> None:
    x = hostile(dtype)
    made, wanted = kernel(x, swapped=swapped), rounding.reference(x, swapped=swapped)
    good = x.float().isfinite().all(1)
    assert torch.equal(made.scale[good], wanted.scale[good])
    assert torch.equal(made.steps[good], wanted.steps[good])
    assert torch.equal(made.sum[good], wanted.sum[good])
    assert made.scale[~good].isnan().all()


def test_vectors_too_long_for_registers_are_read_twice() -> None:
    x = torch.randn(
        1, 8 * rounding.THREADS * 5, generator=torch.Generator().manual_seed(1)
    )
    made, wanted = kernel(x, swapped=False), rounding.reference(x, swapped=False)
    assert torch.equal(made.steps, wanted.steps)
    assert torch.equal(made.scale, wanted.scale)


@pytest.mark.parametrize("form", [TERNARY, TABLE])
def test_int8_products_are_those_of_the_cpu_engine_bit_by_bit(form: str) -> None:
    pytest.importorskip("tersify._runtime", reason="the C++ engine is not built")
    levels = torch.tensor(
        [-1.0, 0.0, 1.0] if form == TERNARY else [-1.0, -0.3, 0.0, 0.4, 0.9]
    )
    layer = nn.Linear(1032, 68, bias=False)
    layer.weight.data = levels[
        torch.randint(
            0, len(levels), (68, 1032), generator=torch.Generator().manual_seed(2)
        )
    ]
    x = torch.randn(3, 1032, generator=torch.Generator().manual_seed(3))
    on_cpu = tersify.compile(layer, x, precision="int8")
    assert [node.op.kernel for node in on_cpu.plan.nodes] == [LinearKernel.I8]
    weight = classified_by_torch(layer.weight.detach())
    assert weight is not None
    packed = in_whole_steps(pack(weight, form))
    made = product(
        x, packed, table_of(packed, INT8), None, INT8, Settings(), emulator.run
    )
    assert torch.equal(made, on_cpu(x))


def test_three_parts_hold_all_of_a_number() -> None:
    x = torch.randn(
        2, 20, generator=torch.Generator().manual_seed(4)
    ) * 10.0 ** torch.arange(-9, 11)
    x[0, :5] = torch.tensor([0.0, -0.0, 3.4e38, -3.4028234e38, 1e-30])
    parts = torch.full((3, 2, 32), 7.0, dtype=torch.bfloat16)
    emulator.run(dense.parts_launch(x, parts))
    assert torch.equal(parts[..., :20], dense.parts_reference(x))
    assert torch.equal(parts.double().sum(0)[:, :20], x.double())
    assert not parts[..., 20:].any()
