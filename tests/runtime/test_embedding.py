"""Embeddings: rows by their numbers, kept in the bits that their levels need; and arithmetic with plain numbers."""

from __future__ import annotations

import pytest
import torch
from runtime_plans import KIND_WEIGHTS, compiled
from torch import nn

from tersify.runtime import compile, run_reference
from tersify.runtime.plan import Input, Node, Plan

extension = pytest.importorskip("tersify._runtime")


def embedding_plan(weight, length):
    node = Node(
        name="y",
        kind="embedding",
        inputs=("x",),
        shape=(length, weight.values.shape[1]),
        weight=weight,
        options={"rows": weight.values.shape[0]},
    )
    return Plan(
        inputs=(Input(name="x", shape=(length,), dtype=torch.int64),), nodes=(node,), outputs=("y",), constants={}
    )


@pytest.mark.parametrize("isa", extension.isas())
@pytest.mark.parametrize("kind", list(KIND_WEIGHTS))
@pytest.mark.parametrize("width", [1, 3, 64])
def test_rows_equal_the_reference(monkeypatch, isa, kind, width):
    monkeypatch.setenv("TERSIFY_ISA", isa)
    plan = embedding_plan(KIND_WEIGHTS[kind](37, width), 5)
    ids = torch.randint(0, 37, (4, 5))
    assert torch.equal(compiled(plan, 2)(ids)[0], run_reference(plan, [ids])[0])


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
    with pytest.raises(ValueError, match=r"10 rows takes numbers 0\.\.9"):
        fast(torch.full((1, 3), bad))


def test_numbers_must_be_int64():
    fast = compile(nn.Embedding(10, 4), torch.zeros(2, 3, dtype=torch.int64), threads=1)
    with pytest.raises(ValueError, match=r"must be torch\.int64"):
        fast(torch.zeros(2, 3))


class WithNumbers(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.first = first

    def forward(self, x):
        return ((self.first(x) * 3 + 1) / 4 - 0.5).relu() + 2


@pytest.mark.parametrize(
    ("first", "shape"),
    [(nn.Conv2d(3, 5, 3), (3, 8, 8)), (nn.Linear(6, 7), (6,)), (nn.Linear(6, 7), (4, 6)), (nn.Identity(), (4, 6))],
)
def test_arithmetic_with_numbers_needs_no_torch_call(first, shape):
    model, x = WithNumbers(first), torch.randn(2, *shape)
    fast = compile(model, x, threads=1)
    assert "0 torch calls" in fast.plan.describe()
    with torch.no_grad():
        assert torch.allclose(fast(x), model(x), atol=1e-5)
