"""Convolutions with signs take rows in pairs where those share enough: what both have is
read once.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_plans import (
    ONE,
    THREE,
    WINDOWS,
    assert_close,
    conv_plan,
    conv_shape,
    floats,
    network_of,
    plan_of,
    random_inputs,
    random_weight,
    run,
    running_on,
    some_epilogue,
    weight_values,
)

from tersify.runtime.epilogue import Epilogue
from tersify.runtime.op_profile import profile
from tersify.runtime.ops import Linear, Window
from tersify.runtime.plan import Node
from tersify.runtime.weights import WeightKind

extension = pytest.importorskip("tersify._runtime")
ISAS = extension.isas()
# two patches of a pair need more registers than the others have
WITH_PAIRS = [i for i in ISAS if i.startswith("avx512") or i in ("amx", "rvv")]
LISTS, PAIRS = "sparse signs", "sparse signs, pairs of rows"


def signs_plan(n, channels, rows, size, window=THREE, **more):
    return conv_plan(
        n,
        channels,
        rows,
        size,
        window,
        **{"kind": WeightKind.SIGN, "zeros": 0.3, **more},
    )


def kernel_of(plan):
    (time,) = profile(network_of(plan), random_inputs(plan), repeats=1)
    (kernel,) = [name for name in time.kernel.split(" + ") if "signs" in name]
    return kernel


@pytest.mark.parametrize("with_pairs", WITH_PAIRS)
@pytest.mark.parametrize(
    ("zeros", "kernel"), [(0.0, PAIRS), (0.5, PAIRS), (0.75, PAIRS), (0.97, LISTS)]
)
def test_the_weights_say_whether_rows_go_in_pairs(
    monkeypatch, with_pairs, zeros, kernel
):
    monkeypatch.setenv("TERSIFY_ISA", with_pairs)
    assert kernel_of(signs_plan(2, 32, 32, (16, 16), zeros=zeros)) == kernel


@pytest.mark.parametrize("with_pairs", WITH_PAIRS)
def test_rows_that_read_different_channels_stay_lists(monkeypatch, with_pairs):
    monkeypatch.setenv("TERSIFY_ISA", with_pairs)
    plan = signs_plan(2, 12, 12, (10, 10), zeros=0.0, groups=12)
    assert kernel_of(plan) == LISTS
    assert_close(plan)


@given(
    n=st.integers(1, 40),
    channels=st.integers(1, 40),
    rows=st.integers(1, 70),
    size=st.tuples(st.integers(1, 19), st.integers(1, 19)),
    window=WINDOWS,
    zeros=st.sampled_from([0.0, 0.3, 0.6, 0.8]),
    residual=st.booleans(),
    isa=st.sampled_from(ISAS),
    threads=st.integers(1, 3),
)
@settings(max_examples=120, deadline=None)
def test_any_shape(n, channels, rows, size, window, zeros, residual, isa, threads):
    if min(conv_shape(rows, size, window)) < 1:
        return
    plan = signs_plan(n, channels, rows, size, window, zeros=zeros, residual=residual)
    with running_on(isa):
        assert_close(plan, threads=threads)


@pytest.mark.parametrize("groups", [2, 3])
def test_rows_of_one_group_are_partners(isa, groups):
    assert_close(signs_plan(3, 30, 66, (9, 9), groups=groups))


@pytest.mark.parametrize("act", ["relu", "clamp", "gelu", "silu"])
@pytest.mark.parametrize("residual", [False, True])
def test_what_happens_to_a_sum(isa, act, residual):
    epilogue = some_epilogue(act, 33)
    assert_close(signs_plan(3, 24, 33, (9, 9), residual=residual, epilogue=epilogue))


@pytest.mark.parametrize("n", [1, 3, 17])
def test_maxima_and_means(isa, n):
    assert_close(signs_plan(n, 24, 33, (16, 16), pool=(2, 2)))
    assert_close(signs_plan(n, 24, 33, (16, 13), mean=some_epilogue("relu", 33)))


def plan_with(rows):
    """A convolution of one channel and these rows of nine weights."""
    plan = signs_plan(2, 1, len(rows), (12, 12), epilogue=Epilogue())
    weight_values(plan).copy_(torch.tensor(rows).view(-1, 1, 3, 3))
    return plan


PLUS, MIXED = [1.0] * 9, [1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0]
NONE, FEW = [0.0] * 9, [0.0] * 8 + [-1.0]


@pytest.mark.parametrize(
    "rows",
    [
        [PLUS, PLUS],
        [PLUS, [-v for v in PLUS]],
        [PLUS, MIXED, MIXED],
        [MIXED, PLUS, NONE],
        [FEW, MIXED, NONE, PLUS, FEW],
        [NONE, NONE],
        [MIXED],
    ],
    ids=["alike", "opposed", "odd", "one empty", "short and long", "empty", "alone"],
)
def test_rows_alike_opposed_empty_and_alone(isa, rows):
    assert_close(plan_with(rows))


@pytest.mark.parametrize("n", [17, 64, 300])
def test_products_of_many_vectors(isa, n):
    weight = random_weight((75, 130), WeightKind.SIGN, 0.4)
    node = Node(name="y", op=Linear(weight=weight), inputs=("x",), value=floats(n, 75))
    assert_close(plan_of(node, inputs={"x": (n, 130)}))


def test_results_do_not_depend_on_the_number_of_threads(isa):
    plan = signs_plan(2, 48, 200, (16, 16))
    inputs = random_inputs(plan)
    one, *others = (run(plan, inputs, threads)[0] for threads in (1, 2, 3))
    assert all(torch.equal(one, other) for other in others)


def test_a_window_over_a_strided_and_dilated_image(isa):
    for window in ((3, 3, 2, 2, 1, 1, 1, 1), (5, 3, 1, 2, 2, 1, 2, 1)):
        assert_close(signs_plan(4, 20, 34, (15, 11), Window(*window)))


def test_sums_in_order_have_the_same_bits_on_every_instruction_set():
    plan = signs_plan(2, 32, 32, (5, 5), ONE)
    inputs = random_inputs(plan)
    answers = []
    for isa in ISAS:
        with running_on(isa):
            answers.append(network_of(plan, in_order=True).run(inputs)[0])
    assert all(torch.equal(answers[0], other) for other in answers[1:])
