"""Products of bits, curves, and what looks at weights, for the stress under
sanitizers: odd sizes, while other threads do the same.
"""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import numpy as np
from decode_stress import WINDOW, floats, span

SIGNS, TERNARY, BINARY = (0.0, -1.0, 1.0), (0.5, -1.0, 1.0), (0.5, 0.0, 1.0)


def run_bits(runtime: ModuleType, space: Any, draw: random.Random) -> list[str]:
    """A layer and a convolution of bits, every curve, and a profile of the plan, whose
    outputs are those of a run.
    """
    g = np.random.default_rng(draw.randrange(1000))
    items, h, w = draw.randint(1, 40), draw.randint(2, 11), draw.randint(2, 11)
    features, rows = draw.randint(1, 300), draw.randint(1, 90)
    channels, filters = draw.randint(1, 70), draw.randint(1, 40)
    levels = draw.choice([SIGNS, TERNARY, BINARY])
    engine, plain = runtime.Engine(space), runtime.Epilogue()
    matrix = runtime.pack_linear_bits(space, np.sign(floats(g, rows, features)))
    kernel = np.sign(floats(g, filters, channels, 3, 3))
    kernel *= g.random(kernel.shape) < 0.7
    window = runtime.pack_conv_bits(space, kernel, WINDOW)
    vectors = engine.input(items, (features, 1, 1))
    images = engine.input(items, (channels, h, w))
    made = [
        engine.linear_bits(vectors, matrix, plain, levels),
        engine.conv_bits(images, window, plain, -1, levels),
        engine.levels(images, levels),
    ]
    positive = engine.curve(vectors, runtime.Curve.EXP)
    curves = [runtime.Curve.LOG, runtime.Curve.ROOT, runtime.Curve.LOG_SIGMOID]
    engine.outputs([*made, *(engine.curve(positive, curve) for curve in curves)])
    inputs = [floats(g, items, features), floats(g, items, channels, h, w)]
    counts = [rows, filters * h * w, channels * h * w, *[features] * len(curves)]
    given = [span(x) for x in inputs]
    results = [[np.zeros(items * n, np.float32) for n in counts] for _ in range(2)]
    if not engine.run(given, [span(y) for y in results[0]]):
        return ["finite inputs were refused"]
    engine.profile(given, [span(y) for y in results[1]])
    same = all(np.array_equal(a, b) for a, b in zip(*results, strict=True))
    return [] if same else ["a profile differs from a run"]


def look_at_weights(runtime: ModuleType, draw: random.Random) -> list[str]:
    """Checksums and classes of a weight, on one thread and on several."""
    g = np.random.default_rng(draw.randrange(1000))
    weight = floats(g, draw.randint(1, 400), draw.randint(1, 500))
    if draw.random() < 0.5:
        weight = np.sign(weight) * (g.random(weight.shape) < 0.5)
        weight = weight.astype(np.float32)
    sums = {runtime.checksum(weight.ctypes.data, weight.nbytes, n) for n in (1, 3)}
    kinds = {runtime.classify(weight, 256, n).kind for n in (1, 3)}
    runtime.release_free_memory()
    return [] if len(sums) == len(kinds) == 1 else ["threads change what a weight is"]
