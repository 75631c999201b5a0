"""The kernels of language models, recurrent layers and attention for the stress under
sanitizers: odd sizes, several texts in one cache, prompts and single tokens.
"""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import numpy as np

WORDS, CAPACITY, SLOTS = 37, 40, 3
WINDOW = [3, 3, 1, 1, 1, 1, 1, 1]


def floats(numbers: np.random.Generator, *shape: int) -> Any:
    return numbers.standard_normal(shape, dtype=np.float32)


def span(values: Any) -> tuple[int, int]:
    return (values.ctypes.data, values.size)


class Decoder:
    """One layer of a decoder with its own cache, which one thread uses; sizes are drawn."""

    def __init__(self, runtime: ModuleType, space: Any, draw: random.Random) -> None:
        g = np.random.default_rng(draw.randrange(1000))
        self.runtime, self.space = runtime, space
        self.key_heads, group = draw.choice([1, 2]), draw.choice([1, 2, 3])
        self.heads = self.key_heads * group
        self.width = 2 * draw.randint(2, 19)
        self.hidden, self.inner = draw.randint(3, 70), draw.randint(3, 90)
        self.window = draw.choice([0, 5])
        self.norm = draw.choice([[], [1.0] * self.width])
        reads = (self.heads + 2 * self.key_heads) * self.width
        self.table = self._levels(g, 16, WORDS, self.hidden)
        self.words = runtime.pack_rows(space, floats(g, WORDS, self.hidden))
        self.read = self._levels(g, draw.choice([3, 16, 200]), reads, self.hidden)
        self.join = runtime.pack_rows(
            space, floats(g, self.hidden, self.heads * self.width)
        )
        signs = g.integers(0, 3, (2 * self.inner, self.hidden), dtype=np.uint8)
        self.grow = runtime.pack_codes_i8(space, signs, [-1, 0, 1])
        steps = g.integers(0, 16, (self.hidden, self.inner), dtype=np.uint8)
        self.shrink = runtime.pack_codes_i8(space, steps, list(range(-8, 8)))
        self.cache = runtime.KeyCache(
            1, self.key_heads, self.width, draw.random() < 0.5
        )
        self.cache.reserve(SLOTS, CAPACITY)
        angles = floats(g, CAPACITY, self.width // 2)
        self.cache.set_rotation(np.cos(angles), np.sin(angles))

    def _levels(self, g: np.random.Generator, count: int, *shape: int) -> Any:
        codes = g.integers(0, count, shape, dtype=np.uint8)
        levels = np.linspace(-1, 1, count).tolist()
        return self.runtime.pack_row_codes(self.space, codes, levels)

    def engine(self, tokens: int, wanted: int) -> Any:
        r, e = self.runtime, self.runtime.Engine(self.space)
        value = r.embedding_rows(e, e.input_ids(1, tokens), self.table, [])
        value = r.scale_columns(e, value, [0.5] * self.hidden)
        normed = e.layer_norm(value, self.hidden, [], [], 1e-5, False)
        attended = r.cached_attention(
            e, r.linear_rows(e, normed, self.read, r.Epilogue()),
            self.cache, 0, self.heads, 0.3, self.window, True, self.norm, self.norm, 1e-5,
        )  # fmt: skip
        value = r.linear_rows(e, attended, self.join, r.Epilogue())
        curve = r.Epilogue(activation=r.Activation.SILU)
        opened = r.gate(
            e, e.linear_i8(value, self.grow, r.Epilogue()), self.inner, curve
        )
        value = e.linear_i8(opened, self.shrink, r.Epilogue())
        rows = r.wanted_rows(e, value, self.cache, wanted)
        e.outputs([r.linear_rows(e, rows, self.words, r.Epilogue())])
        return e

    def run(self, slots: list[int], positions: list[int], ids: list[int]) -> Any:
        """The logits of the last token of the run."""
        self.cache.set_rows(slots, positions, [len(slots) - 1])
        given, made = np.array(ids, np.int64), np.zeros(WORDS, np.float32)
        assert self.engine(len(slots), 1).run([span(given)], [span(made)])
        return made

    def problems(self, draw: random.Random) -> list[str]:
        """A text read at once and token by token; two texts in one run; a copied text."""
        ids = [draw.randrange(WORDS) for _ in range(draw.randint(2, CAPACITY))]
        count = len(ids)
        whole = self.run([0] * count, list(range(count)), ids)
        for position, word in enumerate(ids):
            last = self.run([1], [position], [word])
        both = self.run([0, 1], [count - 1, count - 1], [ids[-1], ids[-1]])
        self.cache.copy(1, 2, count - 1)
        copied = self.run([2], [count - 1], [ids[-1]])
        top = max(1.0, float(np.abs(whole).max()))
        found = [
            f"{name} differs from the text read at once by {np.abs(made - whole).max() / top:.1e}"
            for name, made in (
                ("token by token", last),
                ("a pair", both),
                ("a copy", copied),
            )
            # the inner vectors are rounded to 8 bits, so a last bit may become a step
            if not np.abs(made - whole).max() <= 0.1 * top
        ]
        return found if np.isfinite(whole).all() else [*found, "logits are not finite"]


def run_layers(runtime: ModuleType, space: Any, draw: random.Random) -> list[str]:
    """Dense convolutions, recurrent layers, attention, norms and moves, twice: both runs
    must agree.
    """
    g = np.random.default_rng(draw.randrange(1000))
    items, h, w = draw.randint(1, 5), draw.randint(3, 11), draw.randint(3, 11)
    size, heads, head = draw.randint(1, 9), 2, draw.randint(1, 9)
    e, plain = runtime.Engine(space), runtime.Epilogue()
    image = e.input(items, (6, h, w))
    dense = runtime.pack_conv_dense(space, floats(g, 10, 6, 3, 3), WINDOW, (h, w))
    value = e.group_norm(
        e.conv_dense(image, dense, plain), 5, [1.0] * 10, [0.0] * 10, 1e-5
    )
    value = e.with_constant(
        e.prelu(value, [0.1] * 10), floats(g, 10 * h * w).tolist(), False
    )
    value = e.avg_pool(value, WINDOW, (h, w), True)
    turned = e.move(
        value, (h, 10, w),
        [(h, 0, h, w), (10, 0, 10, h * w), (w, 0, w, 1)], 0, 0.0,
    )  # fmt: skip
    steps = e.input(items, (1, h, 4 * size))
    cell = runtime.pack_recurrent(space, floats(g, 4 * size, size), False, [])
    read = [e.input(items, (heads, h, head)) for _ in range(3)]
    sizes = (heads, heads, h, h, head, head)
    seen = e.attention(read, sizes, 0.4, True, (False,) * 4, (False,) * 3)
    e.outputs([turned, e.recurrent(steps, cell, draw.random() < 0.5), seen])
    inputs = [floats(g, items, 6, h, w), floats(g, items, h, 4 * size)]
    inputs += [floats(g, items, heads, h, head) for _ in range(3)]
    results = []
    for _ in range(2):
        counts = (10 * h * w, h * size, heads * h * head)
        made = [np.zeros(items * count, np.float32) for count in counts]
        if not e.run([span(x) for x in inputs], [span(y) for y in made]):
            return ["finite inputs were refused"]
        results.append(made)
    same = all(np.array_equal(a, b) for a, b in zip(*results, strict=True))
    return [] if same else ["two runs of layers differ"]
