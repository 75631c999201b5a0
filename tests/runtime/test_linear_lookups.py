"""Ternary layers of many rows look their sums up where bytes can be permuted: the whole
numbers that products find.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_plans import (
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

from tersify.runtime.epilogue import Epilogue
from tersify.runtime.op_profile import profile
from tersify.runtime.weights import WeightKind

extension = pytest.importorskip("tersify._runtime")
ISAS = extension.isas()
# Tiles serve batches, and one vector costs the same.
LOOKING_UP = [isa for isa in ISAS if permutes_bytes(isa) and isa != "amx"]
ROWS = 2053  # many enough, and neither whole blocks nor whole bands


def kernels_of(plan, x):
    return {time.kernel for time in profile(network_of(plan), [x], repeats=1)}


def test_many_rows_are_looked_up_and_few_are_not(isa):
    for rows, looked_up in ((ROWS, isa in LOOKING_UP), (200, False)):
        names = kernels_of(linear_int8_plan(1, rows, 64), whole_steps(1, 64))
        assert ("looked-up signs, int8" in names) == looked_up


def test_levels_are_not_looked_up_and_lists_serve_where_most_is_zero(isa):
    for more in ({"kind": WeightKind.TABLE}, {"zeros": 0.97}):
        assert "looked-up signs, int8" not in kernels_of(
            linear_int8_plan(1, ROWS, 256, **more), whole_steps(1, 256)
        )


@given(
    n=st.integers(1, 11),
    rows=st.integers(1400, 2200),
    features=st.integers(1, 300),
    zeros=st.sampled_from([0.0, 0.33, 0.5]),
    isa=st.sampled_from(ISAS),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_any_shape(n, rows, features, zeros, isa, threads, seed):
    with running_on(isa):
        plan = linear_int8_plan(n, rows, features, zeros=zeros, seed=seed)
        assert_close(plan, [whole_steps(n, features, seed=seed)], threads=threads)


@pytest.mark.parametrize("features", [1, 127, 128, 129, 777])
@pytest.mark.parametrize("n", [1, 3, 8])
def test_products_and_lookups_give_the_same_bits(features, n):
    epilogue = Epilogue(scale=torch.linspace(-2, 2, ROWS, dtype=torch.float64))
    plan = linear_int8_plan(n, ROWS, features, epilogue=epilogue)
    x = torch.randn(n, features, generator=torch.Generator().manual_seed(0))
    results = []
    for isa in ISAS[ISAS.index("avx512") :] if "avx512" in ISAS else ISAS[:1]:
        with running_on(isa):
            results += [run(plan, [x], threads)[0] for threads in (1, 2, 3)]
    assert all(torch.equal(results[0], other) for other in results)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_numbers_of_one_sign_overflow_neither_bytes_nor_words(isa, sign):
    plan = linear_int8_plan(3, ROWS, 4100)
    weight_values(plan).fill_(sign)
    weight_values(plan)[::3, ::2] = -sign
    x = torch.full((3, 4100), 1.0)
    x[1] = -1.0
    x[2, 1000:] = 1e-3  # first no room in the words, then much
    assert_close(plan, [x], threads=2)


@pytest.mark.parametrize("size", [29, 120, 121])
def test_sums_of_sixteen_tables_are_right_up_to_where_their_bytes_would_lose_them(
    isa, size
):
    """Up to 1935 either way, 64 activations add up as bytes that may overflow; beyond,
    32 do as bytes that cannot.
    """
    # the last, so that a step is one
    totals = torch.cat([torch.arange(1920, 1950), torch.tensor([127])])
    x = torch.zeros(len(totals), 64)
    x[:-1, :: 4 if size > 100 else 1] = size
    missing = totals - x.sum(1)
    x[:, 0] += missing.clamp(max=0)
    x[:, 1] += missing.clamp(min=0)
    x *= torch.where(
        torch.randn(x.shape, generator=torch.Generator().manual_seed(0)) < 0, -1.0, 1.0
    )
    plan = linear_int8_plan(1, ROWS, x.numel())
    weight_values(plan)[0::3] = x.sign().flatten()
    weight_values(plan)[1::3] = -x.sign().flatten()
    assert_close(plan, [x.reshape(1, -1) / 32], threads=2)


@pytest.mark.parametrize("size", [1.2e-38, 3e-37, 1e-35])
@pytest.mark.parametrize("rows", [40, ROWS])
def test_vectors_of_the_smallest_numbers_give_small_results(isa, rows, size):
    x = torch.full((1, 37), size)
    network = network_of(linear_int8_plan(1, rows, 37), 2)
    of_larger = network.run([x * 2**30])[0] / 2**30
    assert (network.run([x])[0] - of_larger).abs().max() <= 0.01 * x.numel() * max(
        size, 1e-36
    )


def test_all_sets_of_four_signs_are_in_the_table(isa):
    plan = linear_int8_plan(1, 972, 8)
    sets = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0])] * 4)
    weight_values(plan).copy_(
        torch.cat([sets.repeat(12, 1), sets.flip(0).repeat(12, 1)], 1)
    )
    for seed in range(5):
        assert_close(plan, [whole_steps(1, 8, seed=seed)])


def test_a_looked_up_weight_takes_two_bits(isa):
    assert (
        network_of(linear_int8_plan(1, 1024, 1024), 2).weight_bytes()
        == 1024 * 1024 // 4
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_infinity_spoil_their_own_vector_only(isa, bad):
    assert_in_torch_where_not_finite(
        linear_int8_plan(3, ROWS, 37), whole_steps(3, 37), bad, (1, 5)
    )
