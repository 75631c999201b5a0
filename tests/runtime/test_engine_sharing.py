"""Engines on one workspace: items that fold, weights that are shared, threads, forks,
and memory that stays bounded.
"""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from runtime_engines import (
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


def close(found, wanted) -> bool:
    return bool((found - wanted).abs().max() <= 1e-5 * wanted.abs().max())


def video(space, batch: int, frames: int, weight, matrix):
    """Frames are folded into the items, and unfolded again before the linear layer."""
    engine = runtime.Engine(space)
    clip = engine.input(batch, (frames * 3, 9, 7))
    frame = engine.view(clip, batch * frames, (3, 9, 7))
    seen = engine.conv(frame, conv_weights(space, weight), Epilogue(low=0.0))
    means = engine.global_mean(seen, Epilogue())
    joined = engine.view(means, batch, (1, 1, frames * 4))
    engine.outputs(
        [engine.linear(joined, linear_weights(space, matrix), Epilogue()), means]
    )
    return engine


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 2, 5, 16, 37])
def test_folding_an_axis_into_the_items_is_a_view(isa, batch, threads):
    weight, matrix, x = random(4, 3, 3, 3), random(10, 20), random(batch, 15, 9, 7)
    seen = F.conv2d(x.view(batch * 5, 3, 9, 7), weight, padding=1).relu().mean((2, 3))
    found, means = run(
        video(workspace(isa, threads), batch, 5, weight, matrix),
        [x],
        (batch, 10),
        (batch * 5, 4),
    )
    assert close(means, seen)
    assert close(found, F.linear(seen.view(batch, 20), matrix))


def test_results_do_not_depend_on_how_items_are_shared_among_threads(isa):
    weight, matrix, x = random(4, 3, 3, 3), random(10, 20), random(37, 15, 9, 7)
    results = [
        run(
            video(workspace(isa, threads), 37, 5, weight, matrix),
            [x],
            (37, 10),
            (185, 4),
        )
        for threads in (1, 2, 3, 5)
    ]
    for found in results[1:]:
        assert all(close(a, b) for a, b in zip(found, results[0], strict=True))


def test_windows_cut_out_of_the_items_and_inputs_of_different_items(isa):
    """Items that no two values share: eight windows of six rows, and a table that is
    added to each.
    """
    space = workspace(isa, 2)
    engine = runtime.Engine(space)
    x = engine.input(4, (12, 1, 6))
    windows = engine.view(x, 8, (1, 6, 6))
    normed = engine.layer_norm(windows, 6, [], [], 1e-5)
    table = engine.input(8, (1, 6, 6))
    engine.outputs(
        [engine.softmax(engine.elementwise(normed, table, False, Epilogue()), 3)]
    )
    a, b = random(4, 12, 6), random(8, 6, 6, seed=1)
    wanted = (
        (F.layer_norm(a.view(8, 6, 6), (6,)) + b)
        .view(8, 6, 2, 3)
        .softmax(-1)
        .view(8, 6, 6)
    )
    assert close(run(engine, [a, b], (8, 6, 6))[0], wanted)


def test_sign_weights_are_packed_from_any_floats(isa):
    """Packing looks at signs alone, also for the zero point of signed bytes."""
    space = workspace(isa, 1)
    weight, x = (
        random(5, 3, 3, 3) * (random(5, 3, 3, 3, seed=2) > 0),
        random(2, 3, 8, 8).clamp(-1, 1),
    )
    wanted = F.conv2d(x, weight.sign(), padding=1)
    step = (1 / 127, -127.0, 127.0)
    engine = runtime.Engine(space)
    value = engine.input(2, (3, 8, 8))
    engine.quantize(value, *step)
    scaled = Epilogue(scale=[1 / 127] * 5)
    found = [
        engine.conv(
            value, conv_weights(space, weight, kind=runtime.ValueKind.SIGN), Epilogue()
        ),
        engine.conv_i8(
            value,
            runtime.pack_conv_i8(space, weight, THREE, 1, (8, 8)),
            scaled,
            -1,
            (0.25, -127.0, 127.0),
        ),
        engine.conv_codes(
            value,
            runtime.pack_conv_codes(space, weight.sign(), THREE),
            scaled,
            -1,
            step,
        ),
    ]
    engine.outputs(found)
    exact, bytes_, two_bit = run(engine, [x], *[(2, 5, 8, 8)] * 3)
    assert close(exact, wanted)
    rounded = F.conv2d((x * 127).round() / 127, weight.sign(), padding=1)
    assert close(two_bit, rounded)
    assert (bytes_ - rounded).abs().max() <= 0.126
    matrix = random(200, 100)
    signs = runtime.pack_linear(space, matrix, runtime.ValueKind.SIGN, [])
    for rows in (1, 300):
        engine = runtime.Engine(space)
        engine.outputs(
            [engine.linear(engine.input(rows, (100, 1, 1)), signs, Epilogue())]
        )
        assert close(
            run(engine, [random(rows, 100)], (rows, 200))[0],
            F.linear(random(rows, 100), matrix.sign()),
        )


def test_half_an_affine_step_counts(isa):
    """A scale without its shift, a shift without its scale, and a second step behind
    operations that add nothing.
    """
    space = workspace(isa, 1)
    weight, x, scale = random(4, 3, 3, 3), random(2, 3, 8, 8), [0.5, 2.0, -1.0, 3.0]
    packed, factor = conv_weights(space, weight), torch.tensor(scale).view(1, 4, 1, 1)
    engine = runtime.Engine(space)
    value = engine.input(2, (3, 8, 8))
    found = [
        engine.conv(value, packed, Epilogue(scale2=scale)),
        engine.conv(value, packed, Epilogue(shift2=scale)),
        engine.conv(
            value,
            packed,
            Epilogue(scale=scale),
            -1,
            Epilogue(shift=scale, scale2=scale),
        ),
        engine.global_mean(
            engine.conv(value, packed, Epilogue()), Epilogue(scale2=scale)
        ),
        engine.linear(
            value,
            linear_weights(space, random(4, 8)),
            Epilogue(scale=scale, shift2=scale),
        ),
    ]
    engine.outputs(found)
    made = run(engine, [x], (2, 4, 8, 8), (2, 4, 8, 8), (2, 4), (2, 4), (2, 24, 4))
    sums = F.conv2d(x, weight, padding=1)
    assert close(made[0], sums * factor)
    assert close(made[1], sums + factor)
    assert close(
        made[2], ((sums * factor).mean((2, 3)) + factor.view(4)) * factor.view(4)
    )
    assert close(made[3], sums.mean((2, 3)) * factor.view(4))
    assert close(
        made[4].view(2, 3, 8, 4),
        F.linear(x, random(4, 8)) * factor.view(4) + factor.view(4),
    )


def test_one_weight_serves_many_sizes_in_any_order(isa):
    """More geometries than lists are kept for, within one engine and between engines."""
    space = workspace(isa, 2)
    weight = random(6, 3, 3, 3) * (random(6, 3, 3, 3, seed=3) > 0)
    packed = conv_weights(space, weight)
    sizes = [(2, 2), (1, 31), (31, 1), (5, 9), (16, 16), (33, 7), (64, 64)]
    pyramid = runtime.Engine(space)
    pyramid.outputs(
        [
            pyramid.conv(pyramid.input(1, (3, *size)), packed, Epilogue())
            for size in sizes
        ]
    )
    inputs = [random(1, 3, *size) for size in sizes]
    wanted = [F.conv2d(x, weight, padding=1) for x in inputs]
    for _ in range(2):
        found = run(pyramid, inputs, *[tuple(w.shape) for w in wanted])
        assert all(close(a, b) for a, b in zip(found, wanted, strict=True))
    engines = []
    for size in sizes:
        engine = runtime.Engine(space)
        engine.outputs([engine.conv(engine.input(1, (3, *size)), packed, Epilogue())])
        engines.append(engine)
    for _ in range(3):
        for engine, x, w in zip(engines, inputs, wanted, strict=True):
            assert close(run(engine, [x], tuple(w.shape))[0], w)
    assert packed.resident_bytes < 64 * weight.numel() * 4


def test_a_layer_of_many_empty_rows_is_packed_right():
    """Rows beyond 65,535 of one part of the work: their numbers do not wrap around."""
    space = workspace()
    weight = torch.zeros(140_000, 1, 1, 1)
    weight[:3], weight[139_000] = 1.0, 2.0
    engine = runtime.Engine(space)
    value = engine.conv(
        engine.input(1, (1, 1, 1)),
        conv_weights(space, weight, [1, 1, 1, 1, 0, 0, 1, 1]),
        Epilogue(),
    )
    engine.outputs([value])
    (found,) = run(engine, [torch.ones(1)], (140_000,))
    assert torch.equal(found, weight.view(-1))


def test_eight_threads_on_one_workspace():
    space = workspace(threads=2)
    weight, matrix = random(4, 3, 3, 3), random(10, 20)
    engines = {batch: video(space, batch, 5, weight, matrix) for batch in (1, 3, 8)}
    inputs = {batch: random(batch, 15, 9, 7) for batch in engines}
    wanted = {
        batch: run(engines[batch], [inputs[batch]], (batch, 10), (batch * 5, 4))
        for batch in engines
    }
    wrong = []

    def work(number: int) -> None:
        for i in range(60):
            batch = (1, 3, 8)[(number + i) % 3]
            found = run(engines[batch], [inputs[batch]], (batch, 10), (batch * 5, 4))
            if not all(
                torch.equal(a, b) for a, b in zip(found, wanted[batch], strict=True)
            ):
                wrong.append((number, i))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="asks Linux for the resident memory"
)
def test_memory_stays_bounded_over_a_thousand_engines():
    space = workspace(threads=2)
    packed = conv_weights(space, random(16, 16, 3, 3))
    before = 0
    for i in range(1000):
        size = (5 + i % 11, 5 + i % 13)
        engine = runtime.Engine(space)
        value = engine.conv(engine.input(1 + i % 7, (16, *size)), packed, Epilogue())
        engine.outputs([engine.conv(value, packed, Epilogue())])
        run(engine, [random(1 + i % 7, 16, *size)], (1 + i % 7, 16, *size))
        if i == 100:
            before = resident_bytes()
    assert resident_bytes() - before < 64 << 20


def test_memory_of_one_large_run_is_given_back():
    space = workspace()
    packed = conv_weights(space, random(4, 3, 3, 3))

    def engine(size: int):
        made = runtime.Engine(space)
        value = made.conv(made.input(1, (3, size, size)), packed, Epilogue())
        made.outputs([made.global_mean(value, Epilogue())])
        return made

    large, small, x = engine(1024), engine(8), random(1, 3, 8, 8)
    run(large, [random(1, 3, 1024, 1024)], (1, 4))
    most = space.arena_bytes
    assert large.arena_bytes <= most
    for _ in range(1000):
        run(small, [x], (1, 4))
    assert space.arena_bytes < most / 100
    run(large, [random(1, 3, 1024, 1024)], (1, 4))


FORKS = """
import os, sys, threading, time
sys.path.insert(0, TESTS)
import torch
from runtime_engines import conv_weights, random, run, runtime, workspace

space = workspace(threads=3)
packed = conv_weights(space, random(16, 16, 3, 3))
def network():
    engine = runtime.Engine(space)
    value = engine.input(1, (16, 32, 32))
    for _ in range(4):
        value = engine.conv(value, packed, runtime.Epilogue(scale=[0.1] * 16))
    engine.outputs([value])
    return engine
engine, x = network(), random(1, 16, 32, 32)
wanted = run(engine, [x], (1, 16, 32, 32))[0] if RUN_FIRST else None
stop = False
def busy():
    while not stop:
        run(engine, [x], (1, 16, 32, 32))
threads = [threading.Thread(target=busy) for _ in range(BUSY)]
for thread in threads: thread.start()
children = []
for i in range(6):
    time.sleep(0.01)
    child = os.fork()
    if child == 0:
        first, second = run(engine, [x], (1, 16, 32, 32))[0], run(network(), [x], (1, 16, 32, 32))[0]
        good = torch.equal(first, second) and (wanted is None or torch.equal(first, wanted))
        if i % 3 == 0:
            os._exit(0 if good else 1)
        del engine, packed, space
        sys.exit(0 if good else 1)
    children.append(child)
stop = True
for thread in threads: thread.join()
codes = [os.waitpid(child, 0)[1] for child in children]
again = run(engine, [x], (1, 16, 32, 32))[0]
assert codes == [0] * 6, codes
assert wanted is None or torch.equal(again, wanted)
print("done")
"""


@pytest.mark.skipif(
    not hasattr(__import__("os"), "fork"), reason="this system has no fork"
)
@pytest.mark.parametrize(("run_first", "busy"), [(False, 0), (True, 0), (True, 2)])
def test_a_child_process_runs_drops_and_leaves_also_when_forked_in_the_middle_of_a_run(
    run_first, busy
):
    head = f"TESTS, RUN_FIRST, BUSY = {str(Path(__file__).parent)!r}, {run_first}, {busy}\n"
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", head + FORKS],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.stdout == "done\n", found.stderr


def test_a_fast_call_serves_every_size_it_remembers_and_nothing_else():
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("torch before 2.10 has no C functions to ask about a tensor")
    space, matrix = workspace(), random(6, 12)
    packed = linear_weights(space, matrix)
    exchange = torch.Tensor.__dlpack_c_exchange_api__
    fast = runtime.FastCall(torch.Tensor, exchange, torch.empty_like, True, (), ())
    attributes = torch.nn.Module().__dict__
    assert fast((random(1, 12),), attributes) is None

    def remember(batch: int) -> None:
        engine = runtime.Engine(space)
        engine.outputs(
            [engine.linear(engine.input(batch, (1, 1, 12)), packed, Epilogue())]
        )
        fast.remember((torch.Size((batch, 12)),), engine, (torch.empty(batch, 6),))
        with pytest.raises(ValueError, match="not those of its engine"):
            fast.remember((torch.Size((batch, 13)),), engine, (torch.empty(batch, 6),))
        with pytest.raises(ValueError, match="not those of its engine"):
            fast.remember((torch.Size((batch, 12)),), engine, (torch.empty(batch, 7),))

    for batch in (1, 2, 3):
        remember(batch)
    for batch in (1, 2, 3, 1, 3, 2):
        assert close(
            fast((random(batch, 12),), attributes), F.linear(random(batch, 12), matrix)
        )
    for other in (
        random(4, 12),
        random(1, 12).double(),
        random(12, 1).T,
        torch._neg_view(random(1, 12)),
    ):
        assert fast((other,), attributes) is None or close(
            fast((other,), attributes), F.linear(other, matrix)
        )
    spoiled = random(2, 12)
    spoiled[1, 5] = math.nan
    assert fast((spoiled,), attributes) is None
    for batch in range(4, 12):
        remember(batch)
    assert fast((random(2, 12),), attributes) is None
    assert close(fast((random(11, 12),), attributes), F.linear(random(11, 12), matrix))


def test_a_fast_call_reads_row_numbers():
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("torch before 2.10 has no C functions to ask about a tensor")
    engine, table = runtime.Engine(workspace()), random(10, 5)
    engine.outputs(
        [
            engine.embedding(
                engine.input_ids(2, 3), runtime.pack_embedding(table, [], [])
            )
        ]
    )
    fast = runtime.FastCall(
        torch.Tensor,
        torch.Tensor.__dlpack_c_exchange_api__,
        torch.empty_like,
        True,
        (),
        (),
    )
    fast.remember((torch.Size((2, 3)),), engine, (torch.empty(2, 3, 5),))
    ids = torch.tensor([[0, 9, 3], [2, 2, 8]])
    attributes = torch.nn.Module().__dict__
    assert torch.equal(fast((ids,), attributes), table[ids])
    assert fast((ids.float(),), attributes) is None
    with pytest.raises(IndexError, match="10 rows"):
        fast((ids + 1,), attributes)


def test_profiles_name_the_steps_of_every_value():
    space = workspace(threads=2)
    engine = video(space, 8, 5, random(4, 3, 3, 3), random(10, 20))
    outputs = [torch.empty(8, 10), torch.empty(40, 4)]
    given = random(8, 15, 9, 7)  # held: a span does not keep its tensor alive
    times = engine.profile(spans([given]), spans(outputs))
    assert {value for value, _, _ in times} >= {2, 3, 5}
    assert all(us >= 0 for _, _, us in times)
