"""The kernels of decoders on every instruction set, against plain torch, and what they
refuse.
"""

import platform
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from runtime_plans import permutes_bytes

runtime = pytest.importorskip("tersify._runtime")
ISAS = runtime.isas()


def spans(*tensors):
    return [(x.data_ptr(), x.numel()) for x in tensors]


def run(engine, inputs, shape):
    out = torch.full(shape, float("nan"))
    assert engine.run(spans(*inputs), spans(out))
    return out


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def row_weights(space, form, rows, features):
    """Packed, and the same dense."""
    if form in ("floats", "halves"):
        dense = random(rows, features)
        dense = dense.bfloat16().float() if form == "halves" else dense
        return runtime.pack_rows(space, dense.numpy()), dense
    levels = {
        "nibbles": random(16),
        "few": random(3),
        "bytes": random(200),
        "whole": torch.arange(-60.0, 60.0),
    }[form]
    codes = torch.randint(
        len(levels), (rows, features), generator=torch.Generator().manual_seed(3)
    )
    packed = runtime.pack_row_codes(
        space, codes.to(torch.uint8).numpy(), levels.tolist()
    )
    return packed, levels[codes]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "form", ["floats", "halves", "nibbles", "few", "bytes", "whole"]
)
@pytest.mark.parametrize(("rows", "features"), [(1, 1), (33, 7), (64, 130), (95, 257)])
def test_products_of_rows_are_those_of_torch(isa, form, rows, features):
    space = runtime.Workspace(isa, 2)
    weights, dense = row_weights(space, form, rows, features)
    scale, shift = random(rows, seed=1), random(rows, seed=2)
    for vectors in (1, 2, 3, 7, 8, 13):
        engine = runtime.Engine(space)
        value = engine.input(1, (1, vectors, features))
        epilogue = runtime.Epilogue(
            scale=scale.tolist(),
            shift=shift.tolist(),
            activation=runtime.Activation.SILU,
        )
        engine.outputs([runtime.linear_rows(engine, value, weights, epilogue)])
        x = random(vectors, features, seed=vectors)
        wanted = F.silu((x.double() @ dense.double().T) * scale + shift).float()
        given = run(engine, [x], (vectors, rows))
        assert (given - wanted).abs().max() <= 2e-5 * max(
            1.0, float(wanted.abs().max())
        )


@pytest.mark.parametrize("form", ["floats", "halves", "nibbles", "bytes", "whole"])
def test_rows_by_their_numbers_are_the_rows(form):
    space = runtime.Workspace(ISAS[-1], 1)
    weights, dense = row_weights(space, form, 70, 9)
    engine = runtime.Engine(space)
    engine.outputs(
        [
            runtime.embedding_rows(
                engine, engine.input_ids(1, 4), weights, (2 * torch.ones(70)).tolist()
            )
        ]
    )
    ids = torch.tensor([0, 69, 33, 16])
    assert torch.equal(run(engine, [ids], (4, 9)), 2 * dense[ids])


def attended(qkv, heads, key_heads, width, scale, window):
    """Causal attention of one text in double, [tokens, heads × width]."""
    tokens = len(qkv)
    q, k, v = qkv.double().split(
        [heads * width, key_heads * width, key_heads * width], -1
    )
    q = q.reshape(tokens, heads, width).transpose(0, 1)
    k, v = (
        x.reshape(tokens, key_heads, width)
        .transpose(0, 1)
        .repeat_interleave(heads // key_heads, 0)
        for x in (k, v)
    )
    places = torch.arange(tokens)
    seen = places[None] <= places[:, None]
    if window:
        seen &= places[None] > places[:, None] - window
    scores = (q @ k.mT * scale).masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1).reshape(tokens, -1).float()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("heads", "key_heads", "width"), [(1, 1, 5), (6, 2, 20), (4, 4, 64), (8, 1, 33)]
)
@pytest.mark.parametrize(("window", "half"), [(0, False), (11, False), (0, True)])
def test_attention_over_a_cache_is_attention_over_the_text(
    isa, heads, key_heads, width, window, half
):
    space, tokens = runtime.Workspace(isa, 2), 300
    cache = runtime.KeyCache(2, key_heads, width, half)
    cache.reserve(2, 40)
    qkv = random(tokens, (heads + 2 * key_heads) * width)
    wanted, given, at = attended(qkv, heads, key_heads, width, 0.3, window), [], 0
    for count in (1, 30, 1, 1, 200, 67):  # the cache grows on the way
        cache.reserve(2, at + count)
        engine = runtime.Engine(space)
        value = engine.input(1, (1, count, qkv.shape[1]))
        made = runtime.cached_attention(
            engine, value, cache, 1, heads, 0.3, window, True, [], [], 0.0
        )
        engine.outputs([made])
        cache.set_rows([1] * count, list(range(at, at + count)), [0])
        given.append(
            run(engine, [qkv[at : at + count].contiguous()], (count, heads * width))
        )
        at += count
    assert (torch.cat(given) - wanted).abs().max() <= (
        5e-3 if half else 2e-5
    ) * wanted.abs().max()


def cache(*, slots=2, positions=8):
    made = runtime.KeyCache(1, 2, 4, False)
    made.reserve(slots, positions)
    return made


REFUSALS = {
    "no layers": lambda: runtime.KeyCache(0, 1, 4, False),
    "no room": lambda: cache().reserve(0, 5),
    "more than memory can be": lambda: runtime.KeyCache(
        1 << 20, 1 << 20, 1 << 20, False
    ).reserve(1 << 16, 1 << 24),
    "no rows": lambda: cache().set_rows([], [], []),
    "a row without a position": lambda: cache().set_rows([0, 0], [0], [0]),
    "no such sequence": lambda: cache().set_rows([2], [0], [0]),
    "no such position": lambda: cache().set_rows([0], [16], [0]),
    "a gap": lambda: cache().set_rows([0], [1], [0]),
    "no such row": lambda: cache().set_rows([0], [0], [1]),
    "a copy of what is not there": lambda: cache().copy(0, 1, 3),
    "more pairs than numbers": lambda: cache().set_rotation(
        random(8, 3).numpy(), random(8, 3).numpy()
    ),
    "fewer sines than cosines": lambda: cache().set_rotation(
        random(8, 2).numpy(), random(7, 2).numpy()
    ),
    "a code beyond the levels": lambda: runtime.pack_row_codes(
        SPACE, torch.full((3, 4), 2).byte().numpy(), [0.0, 1.0]
    ),
    "no levels": lambda: runtime.pack_row_codes(
        SPACE, torch.zeros(3, 4).byte().numpy(), []
    ),
    "a level that is not finite": lambda: runtime.pack_row_codes(
        SPACE, torch.zeros(3, 4).byte().numpy(), [float("nan")]
    ),
    "weights that are not finite": lambda: runtime.pack_rows(
        SPACE, torch.full((2, 2), float("inf")).numpy()
    ),
    "a code of bytes beyond the levels": lambda: runtime.pack_codes_i8(
        SPACE, torch.full((3, 4), 2).byte().numpy(), [0, 1]
    ),
    "a level that is no byte": lambda: runtime.pack_codes_i8(
        SPACE, torch.zeros(3, 4).byte().numpy(), [200]
    ),
}
SPACE = runtime.Workspace(ISAS[-1], 1)


def signs_product(isa, threads, signs, x, smallest=None):
    """Of signs that are told as codes, and the bits that a weight takes."""
    space = runtime.Workspace(isa, threads)
    codes = (signs + 1).to(torch.uint8)
    weights = runtime.pack_codes_i8(space, codes.numpy(), [-1, 0, 1], smallest)
    engine = runtime.Engine(space)
    value = engine.input(len(x), (x.shape[1], 1, 1))
    engine.outputs([engine.linear_i8(value, weights, runtime.Epilogue())])
    made = run(engine, [x], (len(x), len(signs)))
    return made, 8 * engine.weight_bytes / signs.numel()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("rows", "features"), [(1, 1), (64, 30), (100, 61), (320, 150), (1000, 367)]
)
@pytest.mark.parametrize("zeros", [0.0, 0.7, 0.95])
@pytest.mark.parametrize("smallest", [True, False])
def test_products_of_streamed_signs_are_exact(isa, rows, features, zeros, smallest):
    g = torch.Generator().manual_seed(rows)
    signs = torch.randint(0, 2, (rows, features), generator=g) * 2.0 - 1
    signs[torch.rand(rows, features, generator=g) < zeros] = 0
    for n, most in ((1, 127), (3, 12)):  # sums that fit two bytes only in short rounds
        x = torch.randint(-most, most + 1, (n, features), generator=g).float()
        x[:, 0] = 127
        made, _ = signs_product(isa, 2, signs, x, smallest)
        assert torch.equal(made, x @ signs.T)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("smallest", [True, False])
def test_the_largest_sums_of_signs_do_not_overflow(isa, smallest):
    features = 1900
    signs = torch.ones(300, features)
    signs[1::2] = -1
    for x in (127.0, -127.0):
        x_all = torch.full((1, features), x)
        made, _ = signs_product(isa, 1, signs, x_all, smallest)
        assert torch.equal(made, x * signs.sum(1)[None])


@pytest.mark.skipif(
    not permutes_bytes(ISAS[-1]) or ISAS[-1] == "amx", reason="no permuted bytes"
)
def test_streamed_signs_take_a_byte_for_five_where_few_bytes_are_asked_for():
    signs = torch.randint(-1, 2, (640, 2560), generator=torch.Generator()).float()
    _, bits = signs_product(ISAS[-1], 2, signs, torch.ones(1, 2560), smallest=True)
    assert bits < 1.62
    _, bits = signs_product(ISAS[-1], 2, signs, torch.ones(1, 2560), smallest=False)
    assert bits == 2


@pytest.mark.parametrize("smallest", [True, False])
def test_matrices_that_share_pages_keep_their_own_weights_and_outlive_each_other(
    smallest,
):
    space, x = runtime.Workspace(ISAS[-1], 2), torch.ones(1, 2560)
    x[0, ::3] = -127
    kept = {}
    for seed in range(4):
        g = torch.Generator().manual_seed(seed)
        signs = torch.randint(-1, 2, (1100, 2560), generator=g).float()
        codes = (signs + 1).to(torch.uint8).numpy()
        weights = runtime.pack_codes_i8(space, codes, [-1, 0, 1], smallest)
        kept[seed] = signs, weights
    del kept[0], kept[2]
    for signs, weights in kept.values():
        engine = runtime.Engine(space)
        value = engine.input(1, (2560, 1, 1))
        engine.outputs([engine.linear_i8(value, weights, runtime.Epilogue())])
        assert torch.equal(run(engine, [x], (1, 1100)), x @ signs.T)


@pytest.mark.parametrize("what", REFUSALS)
def test_what_cannot_be_is_refused(what):
    with pytest.raises((ValueError, RuntimeError)):
        REFUSALS[what]()


def test_a_run_of_other_rows_than_the_cache_was_told_of_is_refused():
    kept, engine = cache(), runtime.Engine(SPACE)
    value = engine.input(1, (1, 3, 24))
    for heads, layer in ((0, 0), (3, 0), (2, 1)):
        with pytest.raises(ValueError, match="a multiple of its own"):
            runtime.cached_attention(
                engine, value, kept, layer, heads, 1.0, 0, True, [], [], 0.0
            )
    engine.outputs(
        [runtime.cached_attention(engine, value, kept, 0, 2, 1.0, 0, True, [], [], 0.0)]
    )
    kept.set_rows([0], [0], [0])
    with pytest.raises(ValueError, match="told of 1 tokens and the run has 3"):
        run(engine, [random(3, 24)], (3, 8))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps pages")
def test_free_pages_between_blocks_that_stay_are_given_back():
    def resident_bytes():
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    # Small enough to lie in the heap, where the last block keeps all before it.
    blocks = [np.ones(1 << 16, np.uint8) for _ in range(1024)]
    blocks = blocks[::64]
    before = resident_bytes()
    runtime.release_free_memory()
    assert resident_bytes() < before - (32 << 20)
    assert all(int(block.sum()) == 1 << 16 for block in blocks)
