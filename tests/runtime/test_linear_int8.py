"""Products of few-bit weights with int8 activations, dense or sparse, are exact sums,
on every instruction set.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_plans import (
    activation,
    assert_close,
    assert_in_torch_where_not_finite,
    linear_int8_plan,
    network_of,
    permutes_bytes,
    run,
    running_on,
    weight_values,
    whole_steps,
)
from torch import nn

from tersify.runtime import compile, run_reference
from tersify.runtime.epilogue import Epilogue
from tersify.runtime.passes.quantize import MAX_TABLE_FEATURES
from tersify.runtime.weights import Weight, WeightKind

extension = pytest.importorskip("tersify._runtime")
ISAS = extension.isas()
SIGN, TABLE = WeightKind.SIGN, WeightKind.TABLE


@pytest.mark.parametrize(
    ("rows", "features"), [(1, 1), (64, 4), (10, 320), (65, 7), (130, 77), (257, 1026)]
)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize(("kind", "zeros"), [(SIGN, 0.3), (SIGN, 0.9), (TABLE, 0.3)])
def test_layers_and_batches_of_every_size(isa, rows, features, n, kind, zeros):
    assert_close(
        linear_int8_plan(n, rows, features, kind=kind, zeros=zeros),
        [whole_steps(n, features)],
        threads=2,
    )


@given(
    n=st.integers(1, 11),
    rows=st.integers(1, 200),
    features=st.integers(1, 300),
    kind=st.sampled_from([SIGN, TABLE]),
    zeros=st.sampled_from([0.0, 0.5, 0.8, 0.95, 1.0]),
    isa=st.sampled_from(ISAS),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_any_shape(n, rows, features, kind, zeros, isa, threads, seed):
    with running_on(isa):
        plan = linear_int8_plan(n, rows, features, kind=kind, zeros=zeros, seed=seed)
        assert_close(plan, [whole_steps(n, features, seed=seed)], threads=threads)


@pytest.mark.parametrize("act", ["relu", "clamp", "gelu", "silu"])
@pytest.mark.parametrize("kind", [SIGN, TABLE])
def test_the_epilogue_of_a_sum(isa, act, kind):
    scale, shift = (
        torch.linspace(-2, 2, 70, dtype=torch.float64),
        torch.linspace(3, -1, 70, dtype=torch.float64),
    )
    plan = linear_int8_plan(
        3,
        70,
        33,
        kind=kind,
        epilogue=Epilogue(scale=scale, shift=shift, **activation(act)),
    )
    assert_close(plan, [whole_steps(3, 33)])


def test_every_vector_of_a_sequence_has_its_own_scale(isa):
    x = whole_steps(2, 5, 12) * torch.tensor([2.0**k for k in range(5)]).reshape(
        1, 5, 1
    )
    assert_close(linear_int8_plan(2, 9, 12, inner=(5,)), [x])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_longest_rows_of_the_largest_numbers_do_not_overflow(isa, sign):
    plan = linear_int8_plan(2, 70, 60_000)
    weight_values(plan).fill_(sign)
    x = torch.full((2, 60_000), 1.0)
    x[1] = -1.0
    assert_close(plan, [x])


@pytest.mark.parametrize("level", [1.0, -1.0])
def test_the_longest_rows_of_the_largest_levels_do_not_overflow(isa, level):
    values = torch.full((40, MAX_TABLE_FEATURES), level)
    values[20:] = level / 127
    weight = Weight(
        kind=TABLE, values=values, table=torch.tensor(sorted([level, level / 127]))
    )
    plan = linear_int8_plan(2, 40, MAX_TABLE_FEATURES, weight=weight)
    x = torch.full((2, MAX_TABLE_FEATURES), 1.0)
    x[1] = -1.0
    assert_close(plan, [x])


def test_numbers_between_two_steps_are_rounded_to_the_nearest(isa):
    plan = linear_int8_plan(6, 80, 500)
    x = torch.randn(6, 500, generator=torch.Generator().manual_seed(0))
    wanted = run_reference(plan, [x.double()])[0]
    steps = (run(plan, [x])[0].double() - wanted).abs() / (
        x.abs().amax(1, keepdim=True) / 127
    )
    # where a number lies between two steps in one precision and not in the other
    assert steps.max() <= 1.01
    assert (steps > 0.01).double().mean() < 0.2


def test_a_vector_of_zeros_gives_the_bias(isa):
    shift = torch.arange(66, dtype=torch.float64)
    assert_close(
        linear_int8_plan(2, 66, 20, epilogue=Epilogue(shift=shift)),
        [torch.zeros(2, 20)],
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("position", [0, 36])
def test_nan_and_infinity_spoil_their_own_vector_only(isa, bad, position):
    plan, x = linear_int8_plan(3, 66, 37), whole_steps(3, 37)
    assert_in_torch_where_not_finite(plan, x, bad, (1, position))
    x[1, position] = bad
    assert run(plan, [x])[0][1].isnan().all()


def test_weights_take_two_or_four_bits(isa):
    assert network_of(linear_int8_plan(1, 128, 256)).weight_bytes() == 128 * 256 // 4
    assert (
        network_of(linear_int8_plan(1, 128, 256, kind=TABLE)).weight_bytes()
        == 128 * 256 // 2
    )


def test_where_most_weights_are_zero_only_the_others_are_kept(isa):
    plan = linear_int8_plan(1, 128, 1024, zeros=0.95)
    assert_close(plan, [whole_steps(1, 1024)])
    if isa != "amx":  # which keeps codes for its tiles, too
        assert (network_of(plan).weight_bytes() < 128 * 1024 // 4) == permutes_bytes(
            isa
        )


def test_full_windows_and_empty_ones_beside_each_other(isa):
    plan = linear_int8_plan(3, 50, 1000, zeros=1.0)
    values = weight_values(plan)
    values[3, 64:128] = 1.0  # more steps than a run of the kernel has
    values[3, 500:] = -1.0
    values[17, ::100] = -1.0
    values[49, 999] = 1.0
    assert_close(plan, [whole_steps(3, 1000)])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_long_rows_of_large_numbers_among_zeros_do_not_overflow(isa, sign):
    plan = linear_int8_plan(2, 33, 60_000, zeros=1.0)
    weight_values(plan)[5] = sign
    x = torch.full((2, 60_000), 1.0)
    x[1] = -1.0
    assert_close(plan, [x])


def test_weights_that_are_not_whole_numbers_of_a_byte_are_refused(isa):
    workspace = extension.Workspace(isa, 1)
    for values in (
        torch.tensor([[0.5]]),
        torch.tensor([[128.0, 3.0]]),
        torch.tensor([[2.0, -128.0]]),
    ):
        with pytest.raises(ValueError, match="whole numbers"):
            extension.pack_linear_i8(workspace, values)


@pytest.mark.parametrize(
    ("count", "zeros"),
    [(2, 0.4), (16, 0.0), (16, 0.4), (17, 0.0), (64, 0.1), (250, 0.0)],
)
@pytest.mark.parametrize(
    ("n", "rows", "features"), [(1, 40, 77), (5, 64, 31), (19, 130, 66), (33, 17, 9)]
)
def test_tables_of_any_number_of_levels(isa, count, zeros, n, rows, features):
    g = torch.Generator().manual_seed(count)
    table = torch.randn(count, generator=g).sort().values
    values = table[torch.randint(0, count, (rows, features), generator=g)]
    values = values * (torch.rand(values.shape, generator=g) >= zeros)
    plan = linear_int8_plan(
        n, rows, features, weight=Weight(kind=TABLE, values=values, table=table)
    )
    assert_close(plan, [whole_steps(n, features)], threads=2)


def test_levels_that_are_multiples_of_something_are_met_exactly():
    table = torch.tensor([-0.35, -0.1, 0.05, 0.6])
    weight = Weight(kind=TABLE, values=table.repeat(3, 2), table=table)
    assert torch.allclose(weight.in_steps().values, weight.values, rtol=1e-6)
    uneven = torch.tensor([-0.7, 1.0, 0.123456])
    rounded = (
        Weight(kind=TABLE, values=uneven.repeat(3, 2), table=uneven).in_steps().values
    )
    assert (rounded - uneven.repeat(3, 2)).abs().max() <= 1.0 / 254


def test_results_do_not_depend_on_the_number_of_threads(isa):
    plan, x = linear_int8_plan(3, 300, 200), torch.randn(3, 200)
    results = [run(plan, [x], threads)[0] for threads in (1, 2, 3)]
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.usefixtures("kernels_win")
def test_a_small_layer_stays_exact_and_compile_says_so():
    layer = nn.Linear(64, 8)
    layer.weight.data = layer.weight.data.sign()
    with pytest.warns(RuntimeWarning, match="changes nothing"):
        fast = compile(layer, torch.randn(2, 64), precision="int8")
    assert "int8" not in fast.plan.describe()


@pytest.mark.usefixtures("kernels_win")
def test_tables_of_every_size_run_on_int8_activations(isa):
    x = torch.randn(2, 256)
    for levels in (15, 16, 100):
        table = torch.linspace(0.1, 1.0, levels)
        values = table[torch.arange(64 * 256).reshape(64, 256) % levels].clone()
        values[0, 0] = 0.0
        layer = nn.Linear(256, 64)
        layer.weight.data = values
        fast = compile(layer, x, precision="int8", threads=1)
        assert "int8 activations" in fast.plan.describe()
        with torch.no_grad():
            wanted = layer(x)
        assert (fast(x) - wanted).abs().max() <= 0.02 * wanted.abs().max()


@pytest.mark.usefixtures("kernels_win")
def test_a_ternary_linear_layer_rounds_every_vector_to_127_steps():
    layer = nn.Linear(1000, 130)
    layer.weight.data = layer.weight.data.sign() * (torch.rand_like(layer.weight) < 0.6)
    x = torch.randn(3, 1000)
    fast = compile(layer, x, precision="int8", threads=2)
    assert "int8 activations" in fast.plan.describe()
    step = x.abs().amax(1, keepdim=True) / 127
    with torch.no_grad():
        error = (fast(x) - layer((x / step).round() * step)).abs() / step
    assert error.max() < 1.1
    assert not torch.equal(fast(x), compile(layer, x, threads=2)(x))
