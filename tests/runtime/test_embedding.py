"""Embeddings: rows by their numbers, kept in the bits that their levels need; and
arithmetic with plain numbers.
"""

from __future__ import annotations

import pytest
import torch
from runtime_plans import KIND_WEIGHTS, floats, run
from torch import nn

from tersify.runtime import compile, run_reference
from tersify.runtime.capture import Value
from tersify.runtime.ops import Embedding
from tersify.runtime.plan import Node, Plan

extension = pytest.importorskip("tersify._runtime")


def embedding_plan(weight, *shape):
    node = Node(
        name="y",
        op=Embedding(weight=weight),
        inputs=("x",),
        value=floats(*shape, weight.shape[1]),
    )
    return Plan(
        inputs={"x": Value(shape=shape, dtype=torch.int64)},
        nodes=(node,),
        outputs=("y",),
    )


@pytest.mark.parametrize("kind", list(KIND_WEIGHTS))
@pytest.mark.parametrize("width", [1, 3, 64])
def test_rows_equal_the_reference(isa, kind, width):
    for shape in ((4, 5), (7,), (2, 3, 2)):
        plan = embedding_plan(KIND_WEIGHTS[kind](37, width), *shape)
        ids = torch.randint(0, 37, shape)
        assert torch.equal(run(plan, [ids], 2)[0], run_reference(plan, [ids])[0])


def test_ternary_rows_take_two_bits_a_weight():
    layer = nn.Embedding(1000, 64)
    layer.weight.data = layer.weight.data.sign() * 0.25
    fast = compile(layer, torch.randint(0, 1000, (2, 7)), threads=1)
    ids = torch.randint(0, 1000, (3, 7))
    assert torch.equal(fast(ids), layer(ids))
    assert fast.weight_bytes() <= 1000 * 64 / 4 + 1000 * 4 + 64


@pytest.mark.parametrize("bad", [-1, 10])
def test_a_number_beyond_the_rows_is_an_error(bad):
    fast = compile(nn.Embedding(10, 4), torch.zeros(2, 3, dtype=torch.int64), threads=1)
    with pytest.raises(IndexError, match=r"10 rows takes numbers 0\.\.9"):
        fast(torch.full((2, 3), bad))


def test_numbers_of_another_integer_type_are_taken_as_the_module_takes_them():
    layer = nn.Embedding(10, 4)
    fast = compile(layer, torch.zeros(2, 3, dtype=torch.int64), threads=1)
    ids = torch.randint(0, 10, (2, 3), dtype=torch.int32)
    assert torch.equal(fast(ids), layer(ids))
    with pytest.raises(
        ValueError, match=r"Embedding does not take an input of 2×3 \(RuntimeError"
    ):
        fast(torch.zeros(2, 3))


class WithNumbers(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.first = first

    def forward(self, x):
        return ((self.first(x) * 3 + 1) / 4 - 0.5).relu() + 2


@pytest.mark.usefixtures("kernels_win")
@pytest.mark.parametrize(
    ("first", "shape"),
    [
        (nn.Conv2d(3, 5, 3), (3, 8, 8)),
        (nn.Linear(6, 7), (6,)),
        (nn.Linear(6, 7), (4, 6)),
        (nn.Identity(), (4, 6)),
    ],
)
def test_arithmetic_with_numbers_needs_no_torch_call(first, shape):
    model, x = WithNumbers(first), torch.randn(2, *shape)
    fast = compile(model, x, threads=1)
    assert "0 torch calls" in fast.plan.describe()
    with torch.no_grad():
        assert torch.allclose(fast(x), model(x), atol=1e-5)
