"""Drives the extension at the path given from eight threads, without torch: for a build
with sanitizers.

Shapes are odd, weights are shared between engines and workspaces come and go while
others run.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from array import array
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
from bits_stress import look_at_weights, run_bits
from decode_stress import WINDOW, Decoder, floats, run_layers, span

THREADS, ROUNDS = 8, 12


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("_runtime", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Weights:
    """One of every family, for images of six channels."""

    def __init__(self, runtime: ModuleType, space: Any, seed: int) -> None:
        g = np.random.default_rng(seed)
        kernel = floats(g, 6, 6, 3, 3) * (g.random((6, 6, 3, 3)) < 0.4)
        kernel = kernel.astype(np.float32)
        kinds, lanes = runtime.ValueKind, runtime.Lane
        self.lists = [
            runtime.pack_conv(
                space, kernel, WINDOW, 1, kinds.FLOAT, [], lanes.F32, (9, 9)
            ),
            runtime.pack_conv(
                space, kernel, WINDOW, 1, kinds.SIGN, [], lanes.F16, (9, 9)
            ),
        ]
        self.int8 = runtime.pack_conv_i8(space, kernel, WINDOW, 1, (9, 9))
        self.codes = runtime.pack_conv_codes(space, np.sign(kernel), WINDOW)
        self.matrix = runtime.pack_linear(space, floats(g, 700, 60), kinds.SIGN, [])
        self.bytes = runtime.pack_linear_i8(
            space, np.sign(floats(g, 900, 60)).astype(np.float32)
        )
        self.picks = runtime.pack_linear_i8(
            space, (np.sign(floats(g, 90, 60)) * (g.random((90, 60)) < 0.1)).astype("f")
        )
        self.embedding = runtime.pack_embedding(
            np.sign(floats(g, 50, 6)).astype(np.float32), [-1.0, 1.0], []
        )


def network(
    runtime: ModuleType, space: Any, w: Weights, items: int, size: tuple[int, int]
) -> tuple[Any, list[int]]:
    """Every family in one plan, and the numbers of its outputs."""
    e, plain = runtime.Engine(space), runtime.Epilogue(low=0.0, high=4.0)
    image, ids = e.input(items, (6, *size)), e.input_ids(items, 5)
    e.quantize(image, 4 / 127, -127.0, 127.0)
    value = e.conv(image, w.lists[0], plain)
    value = e.conv(value, w.lists[1], plain, image)
    narrow = e.conv_i8(image, w.int8, plain, -1, (4 / 255, 0.0, 255.0))
    dense = e.conv_codes(image, w.codes, plain, value, (4 / 127, -127.0, 127.0))
    joined = e.concatenate([value, narrow, dense])
    pooled = e.max_pool(joined, [2, 2, 1, 1, 0, 0, 1, 1], (size[0] - 1, size[1] - 1))
    mean = e.global_mean(
        e.elementwise(joined, joined, True, runtime.Epilogue()), runtime.Epilogue()
    )
    rows = e.view(e.embedding(ids, w.embedding), items, (1, 1, 30))
    rows = e.softmax(e.layer_norm(rows, 30, [], [], 1e-5), 30)
    pair = e.view(
        e.concatenate(
            [e.view(rows, items, (30, 1, 1)), e.view(rows, items, (30, 1, 1))]
        ),
        items,
        (1, 1, 60),
    )
    e.outputs(
        [
            pooled,
            mean,
            e.linear(pair, w.matrix, plain),
            e.linear_i8(pair, w.bytes, plain),
            e.linear_i8(pair, w.picks, plain),
        ]
    )
    return e, [18 * (size[0] - 1) * (size[1] - 1), 18, 700, 900, 90]


def work(
    runtime: ModuleType, shared: tuple[Any, Weights], number: int, problems: list[str]
) -> None:
    draw, g = random.Random(number), np.random.default_rng(number)
    for turn in range(ROUNDS):
        space, weights = shared
        if turn % 4 == 3:
            space = runtime.Workspace(draw.choice(runtime.isas()), draw.randint(1, 3))
            weights = Weights(runtime, space, number)
        items, size = draw.randint(1, 9), (draw.randint(3, 12), draw.randint(3, 12))
        engine, counts = network(runtime, space, weights, items, size)
        inputs = [floats(g, items, 6, *size), g.integers(0, 50, (items, 5))]
        results = []
        for _ in range(2):
            outputs = [np.zeros(items * count, np.float32) for count in counts]
            if not engine.run([span(x) for x in inputs], [span(y) for y in outputs]):
                problems.append("finite inputs were refused")
            results.append(outputs)
        if not all(np.array_equal(a, b) for a, b in zip(*results, strict=True)):
            problems.append(f"thread {number} turn {turn}: two runs differ")
        if (
            weights.matrix.resident_bytes <= 0
            or engine.weight_bytes <= 0
            or space.arena_bytes <= 0
        ):
            problems.append("memory in use is not counted")
        problems += run_layers(runtime, space, draw)
        problems += run_bits(runtime, space, draw)
        problems += look_at_weights(runtime, draw)
        if turn % 4 == 0:
            problems += Decoder(runtime, space, draw).problems(draw)


def main() -> int:
    runtime = load(sys.argv[1])
    problems: list[str] = []
    for isa in runtime.isas():
        space = runtime.Workspace(isa, 3)
        shared = (space, Weights(runtime, space, 0))
        with ThreadPoolExecutor(THREADS) as threads:
            done = [
                threads.submit(work, runtime, shared, n, problems)
                for n in range(THREADS)
            ]
        for thread in done:
            thread.result()  # raises what the thread raised
        try:
            runtime.Engine(space).run([(array("f", [0.0]).buffer_info()[0], 1)], [])
            problems.append("an engine without a plan ran")
        except ValueError:
            pass
        print(f"{isa}: {THREADS} threads, {ROUNDS} plans each")
    print("\n".join(problems) or "no problem")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
