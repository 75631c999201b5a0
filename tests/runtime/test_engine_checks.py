"""Whatever an engine is told, it never reads or writes past the memory it was given: it
refuses in one sentence.
"""

from __future__ import annotations

import math

import pytest
import torch
from runtime_engines import (
    HALVES,
    ONE,
    THREE,
    conv_weights,
    linear_weights,
    random,
    run,
    runtime,
    spans,
    workspace,
)

Epilogue = runtime.Epilogue
BYTES = (0.1, 0.0, 255.0)


class Plan:
    """An image of 3 × 8 × 8, two items of it, and weights that fit."""

    def __init__(self) -> None:
        self.space = workspace()
        self.engine = runtime.Engine(self.space)
        self.image = self.engine.input(2, (3, 8, 8))
        self.rows = self.engine.input(2, (1, 5, 12))
        self.ids = self.engine.input_ids(2, 7)
        self.conv = conv_weights(self.space, random(4, 3, 3, 3))
        self.int8 = runtime.pack_conv_i8(
            self.space, random(4, 3, 3, 3), THREE, 1, (8, 8)
        )
        self.codes = runtime.pack_conv_codes(
            self.space, random(4, 3, 3, 3).sign(), THREE
        )
        self.linear = linear_weights(self.space, random(6, 12))
        self.linear_i8 = runtime.pack_linear_i8(self.space, random(6, 12).sign())
        self.dense = runtime.pack_conv_dense(
            self.space, random(4, 3, 3, 3), THREE, (8, 8)
        )
        self.gates = self.engine.input(2, (1, 5, 16))
        self.state = self.engine.input(2, (1, 1, 4))
        self.lstm = runtime.pack_recurrent(self.space, random(16, 4), False, [])
        self.gru = runtime.pack_recurrent(self.space, random(12, 4), True, [0.0] * 12)
        self.embedding = runtime.pack_embedding(random(10, 4), [], [])
        self.plain = Epilogue()


HEADS_FIRST, NO_MASK = (False, False, False, False), (False, False, False)


def attention(p: Plan, sizes: tuple[int, ...]) -> int:
    return int(
        p.engine.attention([p.rows] * 3, sizes, 1.0, False, HEADS_FIRST, NO_MASK)
    )


REFUSALS = {
    "no such value": lambda p: p.engine.softmax(99, 1),
    "a negative value": lambda p: p.engine.global_mean(-1, p.plain),
    "no items": lambda p: p.engine.input(0, (3, 8, 8)),
    "no channels": lambda p: p.engine.input(1, (0, 8, 8)),
    "negative size": lambda p: p.engine.input(1, (3, -8, 8)),
    "more numbers than an int counts": lambda p: p.engine.input(
        1, (1 << 12, 1 << 12, 1 << 12)
    ),
    "no ids": lambda p: p.engine.input_ids(3, 0),
    "channels of a convolution": lambda p: p.engine.conv(p.rows, p.conv, p.plain),
    "channels of an int8 convolution": lambda p: (
        p.engine.quantize(p.rows, *BYTES),
        p.engine.conv_i8(p.rows, p.int8, p.plain, -1, BYTES),
    ),
    "channels of a convolution with codes": lambda p: p.engine.conv_codes(
        p.rows, p.codes, p.plain, -1, BYTES
    ),
    "a window that does not fit": lambda p: p.engine.conv(
        p.engine.input(1, (3, 2, 2)),
        conv_weights(p.space, random(4, 3, 3, 3), [3, 3, 1, 1, 0, 0, 1, 1]),
        p.plain,
    ),
    "a window of codes that does not fit": lambda p: p.engine.conv_codes(
        p.engine.input(1, (3, 2, 2)),
        runtime.pack_conv_codes(
            p.space, random(4, 3, 3, 3).sign(), [3, 3, 1, 1, 0, 0, 1, 1]
        ),
        p.plain,
        -1,
        BYTES,
    ),
    "constants of an epilogue": lambda p: p.engine.conv(
        p.image, p.conv, Epilogue(scale=[1.0] * 3)
    ),
    "constants of a second affine step": lambda p: p.engine.conv(
        p.image, p.conv, Epilogue(shift2=[1.0] * 5)
    ),
    "constants of a mean": lambda p: p.engine.conv(
        p.image, p.conv, p.plain, -1, Epilogue(shift=[1.0] * 3)
    ),
    "constants of a linear layer": lambda p: p.engine.linear(
        p.rows, p.linear, Epilogue(shift=[1.0] * 12)
    ),
    "an empty clamp": lambda p: p.engine.global_mean(
        p.image, Epilogue(low=1.0, high=-1.0)
    ),
    "a clamp to NaN": lambda p: p.engine.global_mean(p.image, Epilogue(low=math.nan)),
    "size of a residual": lambda p: p.engine.conv(p.image, p.conv, p.plain, p.image),
    "items of a residual": lambda p: p.engine.conv(
        p.image, p.conv, p.plain, p.engine.input(1, (4, 8, 8))
    ),
    "no such residual": lambda p: p.engine.conv(p.image, p.conv, p.plain, 50),
    "a residual before the first": lambda p: p.engine.conv(
        p.image, p.conv, p.plain, -2
    ),
    "an int8 convolution of floats": lambda p: p.engine.conv_i8(
        p.image, p.int8, p.plain, -1, BYTES
    ),
    "a step without size": lambda p: p.engine.quantize(p.image, 0.0, 0.0, 255.0),
    "a step that is NaN": lambda p: p.engine.quantize(p.image, math.nan, 0.0, 255.0),
    "more steps than a byte has": lambda p: p.engine.quantize(p.image, 0.1, 0.0, 256.0),
    "more signed steps than a byte has": lambda p: p.engine.quantize(
        p.image, 0.1, -128.0, 127.0
    ),
    "steps without zero": lambda p: p.engine.quantize(p.image, 0.1, 3.0, 255.0),
    "two scales of one value": lambda p: (
        p.engine.quantize(p.image, *BYTES),
        p.engine.quantize(p.image, 0.2, 0.0, 255.0),
    ),
    "steps of a convolution with codes": lambda p: p.engine.conv_codes(
        p.image, p.codes, p.plain, -1, (0.1, 0, 300)
    ),
    "features of a linear layer": lambda p: p.engine.linear(p.image, p.linear, p.plain),
    "features of an int8 linear layer": lambda p: p.engine.linear_i8(
        p.image, p.linear_i8, p.plain
    ),
    "features that only divide": lambda p: p.engine.linear(
        p.engine.input(1, (1, 1, 24)), p.linear, p.plain
    ),
    "size of a pool": lambda p: p.engine.max_pool(p.image, HALVES, (6, 6)),
    "a mean of windows that are not whole": lambda p: p.engine.avg_pool(
        p.image, [3, 3, 2, 2, 0, 0, 1, 1], (4, 4), True
    ),
    "a window that begins behind the image": lambda p: p.engine.max_pool(
        p.image, HALVES, (5, 5)
    ),
    "padding of a pool": lambda p: p.engine.max_pool(
        p.image, [2, 2, 2, 2, 2, 2, 1, 1], (6, 6)
    ),
    "a pool larger than its image": lambda p: p.engine.max_pool(
        p.image, [9, 9, 1, 1, 0, 0, 1, 1], (1, 1)
    ),
    "seven numbers of a window": lambda p: p.engine.max_pool(
        p.image, HALVES[:7], (4, 4)
    ),
    "no stride": lambda p: p.engine.max_pool(p.image, [2, 2, 0, 2, 0, 0, 1, 1], (4, 4)),
    "a huge dilation": lambda p: p.engine.max_pool(
        p.image, [2, 2, 2, 2, 0, 0, 1 << 30, 1], (4, 4)
    ),
    "maxima of what is no convolution": lambda p: p.engine.fold_max_pool(
        p.image, HALVES, (4, 4)
    ),
    "maxima of a mean": lambda p: p.engine.fold_max_pool(
        p.engine.conv(p.image, p.conv, p.plain, -1, p.plain), HALVES, (4, 4)
    ),
    "folded windows that overlap": lambda p: p.engine.fold_max_pool(
        p.engine.conv(p.image, p.conv, p.plain), [3, 3, 1, 1, 1, 1, 1, 1], (8, 8)
    ),
    "maxima of what is read already": lambda p: (
        conv := p.engine.conv(p.image, p.conv, p.plain),
        p.engine.global_mean(conv, p.plain),
        p.engine.fold_max_pool(conv, HALVES, (4, 4)),
    ),
    "maxima of an output": lambda p: (
        conv := p.engine.conv(p.image, p.conv, p.plain),
        p.engine.outputs([conv]),
        p.engine.fold_max_pool(conv, HALVES, (4, 4)),
    ),
    "a value of which only the maxima exist": lambda p: (
        conv := p.engine.conv(p.image, p.conv, p.plain),
        p.engine.fold_max_pool(conv, HALVES, (4, 4)),
        p.engine.global_mean(conv, p.plain),
    ),
    "operands of two sizes": lambda p: p.engine.elementwise(
        p.image, p.rows, False, p.plain
    ),
    "operands of two batches": lambda p: p.engine.elementwise(
        p.image, p.engine.input(3, (3, 8, 8)), False, p.plain
    ),
    "nothing to concatenate": lambda p: p.engine.concatenate([]),
    "heights to concatenate": lambda p: p.engine.concatenate([p.image, p.rows]),
    "batches to concatenate": lambda p: p.engine.concatenate(
        [p.image, p.engine.input(3, (3, 8, 8))]
    ),
    "a view of fewer numbers": lambda p: p.engine.view(p.image, 2, (3, 8, 7)),
    "a view of no items": lambda p: p.engine.view(p.image, 0, (3, 8, 8)),
    "a view of ids as other ids": lambda p: p.engine.view(p.ids, 2, (1, 1, 14)),
    "floats as ids": lambda p: p.engine.embedding(p.image, p.embedding),
    "ids as floats": lambda p: p.engine.softmax(p.ids, 7),
    "ids as an output": lambda p: p.engine.outputs([p.ids]),
    "a softmax over part of an axis": lambda p: p.engine.softmax(p.rows, 5),
    "a softmax along no axis": lambda p: p.engine.softmax_along(p.rows, 7, 12),
    "a softmax of numbers no way apart": lambda p: p.engine.softmax_along(p.rows, 5, 0),
    "a constant mask of attention": lambda p: p.engine.attention_masked(
        [p.rows] * 3,
        (1, 1, 5, 5, 12, 12),
        1.0,
        False,
        HEADS_FIRST,
        (False, True, True),
        [0.0] * 75,
    ),
    "a softmax of nothing": lambda p: p.engine.softmax(p.rows, 0),
    "a norm over part of an axis": lambda p: p.engine.layer_norm(
        p.rows, 5, [], [], 1e-5
    ),
    "weights of a norm": lambda p: p.engine.layer_norm(p.rows, 12, [1.0] * 5, [], 1e-5),
    "channels of a dense convolution": lambda p: p.engine.conv_dense(
        p.rows, p.dense, p.plain
    ),
    "groups of a group norm": lambda p: p.engine.group_norm(
        p.image, 2, [1.0] * 3, [0.0] * 3, 1e-5
    ),
    "weights of a group norm": lambda p: p.engine.group_norm(
        p.image, 3, [1.0] * 2, [0.0] * 3, 1e-5
    ),
    "slopes of channels": lambda p: p.engine.prelu(p.image, [1.0] * 2),
    "a constant of another size": lambda p: p.engine.with_constant(
        p.image, [1.0] * 191, False
    ),
    "gates of a recurrent layer": lambda p: p.engine.recurrent(p.rows, p.lstm, False),
    "a first state without its cell": lambda p: p.engine.recurrent_from(
        p.gates, p.lstm, False, [p.state], False
    ),
    "a first state of another size": lambda p: p.engine.recurrent_from(
        p.gates, p.lstm, False, [p.state, p.rows], False
    ),
    "the cell of a GRU": lambda p: p.engine.recurrent_from(
        p.rows, p.gru, False, [], True
    ),
    "a state's matrix that is no square of gates": lambda p: runtime.pack_recurrent(
        p.space, random(12, 4), False, []
    ),
    "a GRU without a bias": lambda p: runtime.pack_recurrent(
        p.space, random(12, 4), True, []
    ),
    "keys of attention": lambda p: attention(p, (1, 1, 5, 6, 12, 12)),
    "heads of attention": lambda p: attention(p, (3, 2, 5, 5, 4, 4)),
    "no queries": lambda p: attention(p, (1, 1, 0, 5, 12, 12)),
    "attention without values": lambda p: p.engine.attention(
        [p.rows, p.rows], (1, 1, 5, 5, 12, 12), 1.0, False, HEADS_FIRST, NO_MASK
    ),
    "a mask of attention": lambda p: p.engine.attention(
        [p.rows, p.rows, p.rows, p.image],
        (1, 1, 5, 5, 12, 12),
        1.0,
        False,
        HEADS_FIRST,
        NO_MASK,
    ),
    "no outputs": lambda p: p.engine.outputs([]),
    "an output that does not exist": lambda p: p.engine.outputs([44]),
    "weights of another workspace": lambda p: p.engine.linear(
        p.rows, linear_weights(workspace(), random(6, 12)), p.plain
    ),
    "a kernel that is not the window's": lambda p: conv_weights(
        p.space, random(4, 3, 3, 3), ONE
    ),
    "groups that do not divide the rows": lambda p: conv_weights(
        p.space, random(4, 3, 3, 3), groups=3
    ),
    "no groups": lambda p: conv_weights(p.space, random(4, 3, 3, 3), groups=0),
    "no rows": lambda p: conv_weights(p.space, random(0, 3, 3, 3)),
    "a typical output of no size": lambda p: conv_weights(
        p.space, random(4, 3, 3, 3), output=(0, 8)
    ),
    "no levels": lambda p: conv_weights(
        p.space, random(4, 3, 3, 3), kind=runtime.ValueKind.TABLE
    ),
    "more levels than a byte numbers": lambda p: conv_weights(
        p.space, random(4, 3, 3, 3), kind=runtime.ValueKind.TABLE, table=[0.5] * 257
    ),
    "a level that is missing": lambda p: conv_weights(
        p.space, random(4, 3, 3, 3), kind=runtime.ValueKind.TABLE, table=[0.5]
    ),
    "a weight that is NaN": lambda p: linear_weights(
        p.space, torch.full((2, 2), math.nan)
    ),
    "a weight that is infinite": lambda p: conv_weights(
        p.space, torch.full((4, 3, 3, 3), math.inf)
    ),
    "an int8 weight that is NaN": lambda p: runtime.pack_linear_i8(
        p.space, torch.full((2, 2), math.nan)
    ),
    "an embedding's weight that is NaN": lambda p: runtime.pack_embedding(
        torch.full((2, 2), math.nan), [], []
    ),
    "scales of an embedding": lambda p: runtime.pack_embedding(
        random(10, 4), [], [1.0] * 9
    ),
    "levels of an embedding": lambda p: runtime.pack_embedding(
        random(10, 4), [0.5], []
    ),
    "features whose sums overflow": lambda p: runtime.pack_linear_i8(
        p.space, torch.ones(1, (1 << 17) + 1)
    ),
    "no threads": lambda p: runtime.Workspace(runtime.isas()[0], 0),
    "an instruction set of another CPU": lambda p: runtime.Workspace("sve", 1),
}


@pytest.mark.parametrize("asked", REFUSALS.values(), ids=REFUSALS.keys())
def test_what_cannot_be_is_refused_in_one_sentence(asked):
    with pytest.raises(ValueError, match=r"\w") as refusal:
        asked(Plan())
    assert "\n" not in str(refusal.value)


def linear_engine(items: int = 2) -> tuple[object, torch.Tensor]:
    space = workspace()
    engine = runtime.Engine(space)
    value = engine.linear(
        engine.input(items, (1, 5, 12)),
        linear_weights(space, random(6, 12)),
        Epilogue(),
    )
    engine.outputs([value])
    return engine, random(items, 5, 12)


def test_a_run_checks_the_count_of_every_buffer():
    engine, x = linear_engine()
    (y,) = run(engine, [x], (2, 5, 6))
    for inputs, outputs in (
        ([x[:1]], [y]),
        ([x], [y[:1]]),
        ([x, x], [y]),
        ([], [y]),
        ([x], []),
    ):
        with pytest.raises(ValueError, match=r"plan has|numbers, got"):
            engine.run(spans(inputs), spans(outputs))
        with pytest.raises(ValueError, match=r"plan has|numbers, got"):
            engine.profile(spans(inputs), spans(outputs))
    with pytest.raises(ValueError, match="no memory"):
        engine.run([(0, x.numel())], spans([y]))


def test_a_plan_without_outputs_does_not_run_and_one_that_has_run_takes_no_more_operations():
    engine = runtime.Engine(workspace())
    value = engine.input(1, (4, 1, 1))
    with pytest.raises(ValueError, match="no outputs"):
        engine.run(spans([random(4)]), [])
    engine.outputs([value])
    (copied,) = run(engine, [random(4)], (4,))
    assert torch.equal(copied, random(4))
    for change in (
        lambda: engine.softmax(value, 4),
        lambda: engine.outputs([value]),
        lambda: engine.quantize(value, *BYTES),
    ):
        with pytest.raises(ValueError, match="has run"):
            change()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 59, 60 * 4096 + 1, -1])
def test_nothing_is_computed_where_an_input_is_not_finite(bad, place):
    engine, x = linear_engine(items=8192)
    y = torch.zeros(8192, 5, 6)
    x.view(-1)[place] = bad
    assert engine.run(spans([x]), spans([y])) is False
    assert not y.any()
    assert engine.profile(spans([x]), spans([y]))


@pytest.mark.parametrize("wrong", [-1, 10, 1 << 40, -(1 << 62)])
def test_row_numbers_are_looked_at_before_anything_is_read(wrong):
    engine = runtime.Engine(workspace())
    ids = engine.input_ids(3, 4)
    first = engine.embedding(ids, runtime.pack_embedding(random(20, 5), [], []))
    folded = engine.embedding(
        engine.view(ids, 12, (1, 1, 1)), runtime.pack_embedding(random(10, 5), [], [])
    )
    engine.outputs([first, folded])
    numbers = torch.arange(12).remainder(10).reshape(3, 4)
    one, other = run(engine, [numbers], (3, 4, 5), (12, 1, 5))
    assert torch.equal(one, random(20, 5)[numbers])
    assert torch.equal(other.reshape(3, 4, 5), random(10, 5)[numbers])
    numbers[1, 2] = wrong
    with pytest.raises(IndexError, match=r"10 rows takes numbers 0\.\.9"):
        run(engine, [numbers], (3, 4, 5), (12, 1, 5))
