"""Law 4: linear layers in fp32, on every instruction set of this machine, agree with
the reference.
"""

from __future__ import annotations

import pytest
import torch
from runtime_plans import (
    KINDS,
    assert_close,
    assert_in_torch_where_not_finite,
    floats,
    plan_of,
    random_weight,
)

from tersify.runtime.epilogue import Epilogue
from tersify.runtime.ops import Linear
from tersify.runtime.plan import Node
from tersify.runtime.weights import WeightKind

pytest.importorskip("tersify._runtime")


def linear_plan(
    n, rows, features, *, kind=WeightKind.FLOAT, zeros=0.6, inner=(), epilogue=None
):
    op = Linear(
        weight=random_weight((rows, features), kind, zeros),
        epilogue=epilogue or Epilogue(),
    )
    node = Node(name="y", op=op, inputs=("x",), value=floats(n, *inner, rows))
    return plan_of(node, inputs={"x": (n, *inner, features)})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "features"), [(1, 1), (10, 320), (130, 77), (257, 513)]
)
def test_layers_of_every_kind(isa, kind, rows, features):
    epilogue = Epilogue(shift=torch.linspace(-1, 1, rows, dtype=torch.float64), low=0.0)
    for n in (1, 2, 7, 64):
        assert_close(
            linear_plan(n, rows, features, kind=kind, epilogue=epilogue), threads=2
        )


@pytest.mark.parametrize("zeros", [0.0, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_without_zeros_and_of_nothing_else(isa, kind, zeros):
    for n in (1, 9):
        assert_close(linear_plan(n, 33, 65, kind=kind, zeros=zeros))


def test_a_layer_of_a_sequence(isa):
    assert_close(linear_plan(3, 12, 9, inner=(5,)))


def test_a_layer_of_more_axes(isa):
    assert_close(linear_plan(2, 12, 9, inner=(3, 5)))


def test_a_layer_of_one_vector_without_a_batch(isa):
    op = Linear(weight=random_weight((12, 9), WeightKind.SIGN, 0.5))
    assert_close(
        plan_of(
            Node(name="y", op=op, inputs=("x",), value=floats(12)), inputs={"x": (9,)}
        )
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_vector_and_meets_zero_weights_as_in_torch(
    isa, bad
):
    assert_in_torch_where_not_finite(
        linear_plan(3, 40, 37, kind=WeightKind.SIGN), torch.randn(3, 37), bad, (1, 5)
    )
