"""Large weights are packed by several threads and in vectors: the packed form is the
same, and so are the refusals.
"""

from __future__ import annotations

import math

import pytest
import torch
from runtime_plans import KINDS, floats, linear_int8_plan, plan_of, random_weight, run
from torch import nn

from tersify.runtime import compile
from tersify.runtime.ops import Linear
from tersify.runtime.plan import Node
from tersify.runtime.weights import Weight, WeightKind, classify

runtime = pytest.importorskip("tersify._runtime")

ROWS, FEATURES = 1030, 771  # three threads' worth, and no multiple of anything
SIGN, TABLE, FLOAT = WeightKind.SIGN, WeightKind.TABLE, WeightKind.FLOAT


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("zeros", [0.3, 0.95])
def test_what_many_threads_pack_is_what_one_packs(isa, kind, zeros):
    linear = Linear(weight=random_weight((ROWS, FEATURES), kind, zeros))
    node = Node(name="y", op=linear, inputs=("x",), value=floats(1, ROWS))
    plan, x = plan_of(node, inputs={"x": (1, FEATURES)}), torch.randn(1, FEATURES)
    one, three = (run(plan, [x], threads)[0] for threads in (1, 3))
    assert torch.equal(one, three)


@pytest.mark.parametrize(("kind", "zeros"), [(SIGN, 0.3), (SIGN, 0.95), (TABLE, 0.3)])
def test_the_same_for_weights_of_int8_products(isa, kind, zeros):
    plan, x = (
        linear_int8_plan(1, ROWS, FEATURES, kind=kind, zeros=zeros),
        torch.randn(1, FEATURES),
    )
    one, three = (run(plan, [x], threads)[0] for threads in (1, 3))
    assert torch.equal(one, three)


@pytest.mark.parametrize("zeros", [0.3, 0.95])
def test_only_the_signs_of_a_scaled_weight_are_packed(isa, zeros):
    signs = random_weight((70, 300), SIGN, zeros).values
    results = []
    for values, only_signs in (
        (signs, False),
        (signs, True),
        (signs * torch.rand(70, 1), True),
    ):
        space = runtime.Workspace(isa, 1)
        engine = runtime.Engine(space)
        value = engine.linear_i8(
            engine.input(1, (1, 1, 300)),
            runtime.pack_linear_i8(space, values, only_signs),
            runtime.Epilogue(),
        )
        engine.outputs([value])
        x, made = torch.linspace(-1, 1, 300), torch.empty(70)
        assert engine.run([(x.data_ptr(), 300)], [(made.data_ptr(), 70)])
        results.append(made)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("row", [0, ROWS // 2, ROWS - 1])
def test_a_weight_that_is_not_finite_is_refused_by_whichever_thread_reads_it(
    isa, bad, row
):
    values = random_weight((ROWS, FEATURES), SIGN, 0.3).values.clone()
    values[row, 5] = bad
    space = runtime.Workspace(isa, 3)
    for pack in (
        lambda: runtime.pack_linear(space, values, runtime.ValueKind.SIGN, []),
        lambda: runtime.pack_linear(space, values, runtime.ValueKind.FLOAT, []),
        lambda: runtime.pack_linear_i8(space, values, True),
        lambda: runtime.pack_linear_i8(space, values),
    ):
        with pytest.raises(ValueError, match="not finite"):
            pack()


def test_a_level_that_is_missing_is_found_by_every_thread(isa):
    values = random_weight((ROWS, FEATURES), SIGN, 0.3).values.clone()
    values[-1, -1] = 3.0
    with pytest.raises(ValueError, match="missing from its table"):
        runtime.pack_linear(
            runtime.Workspace(isa, 3), values, runtime.ValueKind.TABLE, [-1.0, 1.0]
        )


def test_round_levels_are_told_apart():
    weight = torch.arange(40_000).remainder(200).float().reshape(200, 200)
    found = classify("weight", weight)
    assert found.kind is TABLE
    assert found.table is not None
    assert found.table.tolist() == [float(level) for level in range(1, 200)]


@pytest.mark.parametrize("scale", [None, 0.3])
def test_a_ternary_weight_that_stays_dense_is_the_one_the_module_holds(scale):
    weight = random_weight((40, 30), SIGN, 0.3).values * (scale or 1.0)
    found = classify("weight", weight)
    row_scale = None if found.row_scale is None else found.row_scale.double()
    assert found.kind is SIGN
    assert found.times(row_scale).data_ptr() == weight.data_ptr()
    doubled = torch.full((40,), 2.0, dtype=torch.float64)
    assert torch.equal(found.times(doubled), 2 * weight.sign())


@pytest.mark.parametrize("scale", [1.0, 0.3, 1e-30])
def test_products_with_signs_do_not_depend_on_the_scale_of_the_rows(scale):
    signs = random_weight((40, 30), SIGN, 0.3).values
    x = torch.randn(5, 30, dtype=torch.float64)
    found = classify("weight", signs * scale)
    assert torch.allclose(found.product(x), x @ signs.T.double(), rtol=1e-7)
    # only their signs count
    any_size = Weight(kind=SIGN, values=signs * torch.rand(40, 30))
    assert torch.equal(any_size.product(x), x @ signs.T.double())
    assert torch.equal(any_size.times(None), signs)


def test_a_large_ternary_layer_is_right_and_unchanged(isa):
    layer = nn.Linear(FEATURES, ROWS).eval()
    layer.weight.data = 0.02 * random_weight((ROWS, FEATURES), SIGN, 0.4).values
    before, x = layer.weight.detach().clone(), torch.randn(3, FEATURES)
    with torch.no_grad():
        wanted = layer(x)
    made = compile(layer, x, threads=3)(x)
    assert float((made - wanted).abs().max() / wanted.abs().max()) < 2e-5
    assert torch.equal(layer.weight, before)
