"""Products of few-bit weights with 8-bit activations, dense or sparse, are exact sums, on every instruction set."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_plans import assert_close, byte_plan, compiled, permutes_bytes, running_on, whole_steps
from torch import nn

from tersify.runtime import compile, run_reference
from tersify.runtime.plan import Finish
from tersify.runtime.quantize import MAX_TABLE_FEATURES

extension = pytest.importorskip("tersify._runtime")
ISAS = extension.isas()


@pytest.mark.parametrize(("rows", "features"), [(1, 1), (64, 4), (10, 320), (65, 7), (130, 77), (257, 1026)])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize(("kind", "zeros"), [("sign", 0.3), ("sign", 0.9), ("table", 0.3)])
def test_layers_and_batches_of_every_size(isa, rows, features, n, kind, zeros):
    assert_close(byte_plan(rows, features, kind=kind, zeros=zeros), [whole_steps(n, features)], threads=2)


@given(
    n=st.integers(1, 11),
    rows=st.integers(1, 200),
    features=st.integers(1, 300),
    kind=st.sampled_from(["sign", "table"]),
    zeros=st.sampled_from([0.0, 0.5, 0.8, 0.95, 1.0]),
    isa=st.sampled_from(ISAS),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_any_shape(n, rows, features, kind, zeros, isa, threads, seed):
    with running_on(isa):
        plan = byte_plan(rows, features, kind=kind, zeros=zeros, seed=seed)
        assert_close(plan, [whole_steps(n, features, seed=seed)], threads=threads)


@pytest.mark.parametrize("act", ["relu", "clamp", "gelu", "silu"])
def test_the_finish_of_a_sum(isa, act):
    constants = [torch.linspace(-2, 2, 70, dtype=torch.float64), torch.linspace(3, -1, 70, dtype=torch.float64)]
    ends = {"relu": {"low": 0.0}, "clamp": {"low": -0.5, "high": 0.25}}.get(act, {"act": act})
    plan = byte_plan(70, 33, finish=Finish(scale=constants[0], shift=constants[1], **ends))
    assert_close(plan, [whole_steps(3, 33)])


def test_every_vector_of_a_sequence_has_its_own_scale(isa):
    x = whole_steps(2, 5, 12) * torch.tensor([2.0**k for k in range(5)]).reshape(1, 5, 1)
    assert_close(byte_plan(9, 12, inner=(5,)), [x])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_longest_rows_of_the_largest_numbers_do_not_overflow(isa, sign):
    plan = byte_plan(70, 60_000)
    plan.nodes[0].weight.values.fill_(sign)
    x = torch.full((2, 60_000), 1.0)
    x[1] = -1.0
    assert_close(plan, [x])


@pytest.mark.parametrize("level", [1.0, -1.0])
def test_the_longest_rows_of_the_largest_levels_do_not_overflow(isa, level):
    plan = byte_plan(40, MAX_TABLE_FEATURES, kind="table")
    weight = plan.nodes[0].weight
    weight.values[:20], weight.values[20:] = level, level / 127
    x = torch.full((2, MAX_TABLE_FEATURES), 1.0)
    x[1] = -1.0
    assert_close(plan, [x])


def test_a_small_layer_stays_exact():
    layer = nn.Linear(64, 8)
    layer.weight.data = layer.weight.data.sign()
    assert "int8" not in compile(layer, torch.randn(2, 64), precision="int8").plan.describe()


def test_sixteen_levels_fit_and_one_more_stays_exact(isa):
    x = torch.randn(2, 256)
    for levels in (15, 16):
        table = torch.linspace(0.1, 1.0, levels)
        values = table[torch.arange(64 * 256).reshape(64, 256) % levels].clone()
        values[0, 0] = 0.0
        layer = nn.Linear(256, 64)
        layer.weight.data = values
        fast = compile(layer, x, precision="int8", threads=1)
        assert ("int8 activations" in fast.plan.describe()) == (levels == 15)
        with torch.no_grad():
            wanted = layer(x)
        assert (fast(x) - wanted).abs().max() <= (0.02 if levels == 15 else 1e-5) * wanted.abs().max()


def test_numbers_between_two_steps_are_rounded_to_the_nearest(isa):
    plan = byte_plan(80, 500)
    x = torch.randn(6, 500, generator=torch.Generator().manual_seed(0))
    wanted = run_reference(plan, [x.double()])[0]
    steps = (compiled(plan)(x)[0].double() - wanted).abs() / (x.abs().amax(1, keepdim=True) / 127)
    assert steps.max() <= 1.01  # where a number lies between two steps in one precision and not in the other
    assert (steps > 0.01).double().mean() < 0.2


def test_a_vector_of_zeros_gives_the_bias(isa):
    shift = torch.arange(66, dtype=torch.float64)
    assert_close(byte_plan(66, 20, finish=Finish(shift=shift)), [torch.zeros(2, 20)])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 36])
def test_nan_and_infinity_spoil_their_own_vector_only(isa, bad, place):
    plan = byte_plan(66, 37)
    x = whole_steps(3, 37)
    clean = compiled(plan)(x)[0]
    x[1, place] = bad
    dirty = compiled(plan)(x)[0]
    assert dirty[1].isnan().all()
    assert torch.equal(dirty[[0, 2]], clean[[0, 2]])


def test_weights_take_two_or_four_bits(isa):
    assert compiled(byte_plan(128, 256)).weight_bytes() == 128 * 256 // 4
    assert compiled(byte_plan(128, 256, kind="table")).weight_bytes() == 128 * 256 // 2


def test_where_most_weights_are_zero_only_the_others_are_kept(isa):
    plan = byte_plan(128, 1024, zeros=0.95)
    network = compiled(plan)
    assert_close(plan, [whole_steps(1, 1024)])
    if isa != "amx":  # which keeps codes for its tiles, too
        assert (network.weight_bytes() < 128 * 1024 // 4) == permutes_bytes(isa)


def test_full_windows_and_empty_ones_beside_each_other(isa):
    plan = byte_plan(50, 1000, zeros=1.0)
    values = plan.nodes[0].weight.values
    values[3, 64:128] = 1.0  # more steps than a run of the kernel has
    values[3, 500:] = -1.0
    values[17, ::100] = -1.0
    values[49, 999] = 1.0
    assert_close(plan, [whole_steps(3, 1000)])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_long_rows_of_large_numbers_among_zeros_do_not_overflow(isa, sign):
    plan = byte_plan(33, 60_000, zeros=1.0)
    plan.nodes[0].weight.values[5] = sign
    x = torch.full((2, 60_000), 1.0)
    x[1] = -1.0
    assert_close(plan, [x])


def test_weights_that_are_not_few_whole_numbers_are_refused(isa):
    for values, message in ((torch.tensor([[0.5]]), "whole numbers"), (torch.arange(17.0).reshape(1, -1), "16 levels")):
        with pytest.raises(ValueError, match=message):
            extension.pack_linear_i8(extension.Workspace(isa, 1), values)


def test_results_do_not_depend_on_the_number_of_threads(isa):
    plan = byte_plan(300, 200)
    x = torch.randn(3, 200)
    results = [compiled(plan, threads)(x)[0] for threads in (1, 2, 3)]
    assert all(torch.equal(results[0], other) for other in results[1:])
