"""Dense convolutions and products over float lanes: every shape, window and epilogue,
on every instruction set.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_plans import (
    THREE,
    WINDOWS,
    assert_close,
    conv_plan,
    conv_shape,
    floats,
    plan_of,
    running_on,
    some_epilogue,
)

from tersify.runtime.epilogue import Epilogue
from tersify.runtime.ops import ConvKernel, Linear, LinearKernel
from tersify.runtime.plan import Node
from tersify.runtime.weights import Weight, WeightKind

extension = pytest.importorskip("tersify._runtime")
ISAS = extension.isas()
KINDS = [WeightKind.SIGN, WeightKind.TABLE, WeightKind.FLOAT]


def dense_plan(n, channels, rows, size, window=THREE, **more):
    return conv_plan(
        n,
        channels,
        rows,
        size,
        window,
        kernel=ConvKernel.DENSE_F32,
        **{"zeros": 0.2, **more},
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n", "channels", "rows", "size"),
    [
        (1, 3, 16, (32, 32)),
        (1, 64, 64, (8, 8)),
        (3, 5, 7, (9, 6)),
        (1, 200, 33, (4, 4)),
        (17, 8, 9, (3, 3)),
        (1, 4, 1, (1, 50)),
    ],
)
def test_layers_of_every_size(isa, kind, n, channels, rows, size):
    assert_close(dense_plan(n, channels, rows, size, kind=kind), threads=2)


@given(
    n=st.integers(1, 6),
    channels=st.integers(1, 20),
    rows=st.integers(1, 70),
    size=st.tuples(st.integers(1, 21), st.integers(1, 21)),
    window=WINDOWS,
    isa=st.sampled_from(ISAS),
    threads=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_any_shape(n, channels, rows, size, window, isa, threads):
    if min(conv_shape(rows, size, window)) < 1:
        return
    with running_on(isa):
        assert_close(
            dense_plan(n, channels, rows, size, window, kind=WeightKind.FLOAT),
            threads=threads,
        )


@pytest.mark.parametrize("act", ["relu", "clamp", "gelu"])
@pytest.mark.parametrize("residual", [False, True])
def test_what_happens_to_a_sum(isa, act, residual):
    assert_close(
        dense_plan(
            2, 6, 10, (11, 7), epilogue=some_epilogue(act, 10), residual=residual
        )
    )


def test_maxima_and_means(isa):
    assert_close(dense_plan(2, 6, 10, (16, 16), pool=(2, 2)))
    assert_close(dense_plan(2, 6, 10, (12, 20), mean=Epilogue()), threads=2)


@pytest.mark.parametrize(
    ("n", "rows", "features"), [(1, 5, 9), (40, 70, 33), (160, 130, 64), (7, 3, 300)]
)
def test_products_of_many_vectors(isa, n, rows, features):
    weight = Weight(kind=WeightKind.FLOAT, values=torch.randn(rows, features))
    op = Linear(
        weight=weight,
        kernel=LinearKernel.DENSE_F32,
        epilogue=some_epilogue("relu", rows),
    )
    op = replace(op, epilogue=replace(op.epilogue, scale2=None, shift2=None))
    plan = plan_of(
        Node(name="y", op=op, inputs=("x",), value=floats(n, rows)),
        inputs={"x": (n, features)},
    )
    assert_close(plan, threads=2)
