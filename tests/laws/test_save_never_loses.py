"""Law 9: `save` stays below zstd-19 of the same tensors, and within 0.3 % of the
order-0 entropy of the codes.
"""

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from safetensors.torch import save as safetensors_bytes

import tersify
from tersify import CompressedTensor, codec
from tersify.codec import native
from tersify.tensor import code_counts
from tersify.tensor.compressed import same_bits

pytestmark = pytest.mark.skipif(
    native.extension() is None, reason="tersify._codec is not built"
)
WEIGHTS = Path(__file__).parents[3] / "shared/data/weights"
# header, provenance and checksums, which a bare zstd frame has not
CONTAINER_BYTES = 512


def order0_bytes(tensor):
    """The entropy of a tensor's own codes, and what telling their frequencies costs:
    half the logarithm for each.
    """
    counts = code_counts(tensor).double()
    counts = counts[counts > 0]
    bits = float((counts * (counts.sum() / counts).log2()).sum())
    return bits / 8, len(counts) * math.log2(max(2, tensor.numel())) / 16


def coded_bytes(tensors):
    """The groups of codes with their side information; the tensors must come back bit
    for bit.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "codes.terse"
        tersify.save(tensors, path)
        back = tersify.open(path)
        assert all(back[name].equal(tensor) for name, tensor in tensors.items())
        return sum(
            g["bytes"]
            for g in codec.inspect(path)["groups"]
            if g["holds"].startswith("codes")
        )


def check_entropy(tensors):
    entropy, telling = map(sum, zip(*map(order0_bytes, tensors.values()), strict=True))
    # beside the frequencies: tables of pairs and triples, and what streams begin with
    side = max(64, 24 * len(tensors))
    assert coded_bytes(tensors) <= 1.003 * entropy + telling + side


def check_zstd(tensors):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dense.terse"
        size = tersify.save(tensors, path)
        back = tersify.open(path).read().state_dict()
        assert all(same_bits(back[name], tensor) for name, tensor in tensors.items())
    zipped = len(
        zstandard.ZstdCompressor(level=19).compress(safetensors_bytes(tensors))
    )
    assert size <= zipped + CONTAINER_BYTES


def quantized(weight, levels, kind):
    """Codes on an even grid, on quantiles, or of a table that mixes both; a part pruned
    where `kind` says so.
    """
    flat = weight.flatten()
    even = torch.linspace(float(flat.min()), float(flat.max()), levels)
    quantiles = flat.sort().values[
        ((torch.arange(levels) + 0.5) * flat.numel() / levels).long()
    ]
    table = (
        {"even": even, "quantiles": quantiles}.get(kind, (even + quantiles) / 2)
        .sort()
        .values
    )
    codes = torch.bucketize(weight, (table[1:] + table[:-1]) / 2)
    if kind == "pruned":
        codes = torch.where(
            weight.abs() > weight.abs().flatten().quantile(0.9),
            1 + codes.clamp(max=254),
            0,
        )
        table = torch.cat([torch.zeros(1), torch.where(table == 0, 1e-9, table)])[:256]
    return CompressedTensor(
        shape=tuple(weight.shape), codes=codes.to(torch.uint8), codebook=table
    )


SHAPES = [
    (300, 500),
    (64, 48, 3, 3),
    (1024, 96),
    (40000,),
    (128, 200, 1, 1),
    (7, 9001),
    (16, 8, 5, 5),
]
NOISES = ["normal", "laplace", "uniform", "outliers"]


def noise(kind, shape, rng):
    if kind == "laplace":
        made = rng.laplace(size=shape)
    elif kind == "uniform":
        made = rng.uniform(-1, 1, shape)
    else:
        made = rng.normal(size=shape)
    if kind == "outliers":
        made[rng.random(shape) < 1e-3] *= 30
    return torch.from_numpy((made * rng.uniform(0.01, 2)).astype(np.float32))


@given(st.data(), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_codes_of_any_width_stay_at_their_entropy(data, seed):
    rng = np.random.default_rng(seed)
    levels = data.draw(
        st.sampled_from([2, 3, 4, 5, 8, 11, 16, 17, 32, 64, 100, 128, 200, 256])
    )
    tensors = {
        f"{i}.weight": quantized(
            noise(
                data.draw(st.sampled_from(NOISES)),
                data.draw(st.sampled_from(SHAPES)),
                rng,
            ),
            levels,
            data.draw(st.sampled_from(["even", "quantiles", "mixed", "pruned"])),
        )
        for i in range(data.draw(st.integers(1, 4)))
    }
    check_entropy(tensors)


@pytest.mark.parametrize("zeros", [0.97, 0.99, 0.999, 0.9999])
@pytest.mark.parametrize("levels", [2, 3, 16, 256])
def test_few_survivors_cost_no_more_than_their_entropy(zeros, levels):
    rng = np.random.default_rng(levels)
    codes = rng.integers(1, levels, (1000, 1000)) * (rng.random((1000, 1000)) > zeros)
    table = torch.arange(levels).float()
    tensor = CompressedTensor(
        shape=(1000, 1000),
        codes=torch.from_numpy(codes.astype(np.uint8)),
        codebook=table,
    )
    check_entropy({"weight": tensor})


@st.composite
def dense(draw, rng):
    """A tensor as checkpoints have it: noise, levels, zeros of both signs, repeats,
    counters, masks.
    """
    shape = draw(
        st.sampled_from(
            [(80, 120), (33, 16, 3, 3), (5000,), (200, 64), (3, 3), (96, 96)]
        )
    )
    weight = noise(draw(st.sampled_from(NOISES)), shape, rng)
    form = draw(
        st.sampled_from(
            [
                "as it is",
                "rows",
                "levels",
                "pruned",
                "masked",
                "repeated",
                "counter",
                "triangle",
            ]
        )
    )
    if form == "rows":
        scale = (
            weight.abs()
            .reshape(len(weight), -1)
            .amax(1)
            .reshape(-1, *[1] * (weight.ndim - 1))
            / 7
        )
        weight = (weight / scale).round() * scale
    elif form == "levels":
        weight = quantized(weight, draw(st.integers(2, 40)), "even").to_dense()
    elif form == "pruned":
        weight = torch.where(weight.abs() > weight.abs().mean(), weight, 0.0)
    elif form == "masked":
        weight = weight * (weight.abs() > weight.abs().mean())
    elif form == "repeated":
        weight = weight[: max(1, len(weight) // 7)].repeat(5, *[1] * (weight.ndim - 1))
    elif form == "counter":
        return torch.arange(draw(st.integers(1, 3000)))
    elif form == "triangle":
        return torch.ones(100, 100).tril()
    dtype = draw(
        st.sampled_from(
            [torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64]
        )
    )
    return weight.to(dtype)


@given(st.data(), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_a_plain_save_of_any_tensors_is_never_larger_than_zstd(data, seed):
    rng = np.random.default_rng(seed)
    tensors = {
        f"{i}.weight": data.draw(dense(rng))
        for i in range(data.draw(st.integers(1, 5)))
    }
    if data.draw(st.booleans()):
        tensors["copy.weight"] = tensors["0.weight"].clone()
    check_zstd(tensors)


def test_layers_made_by_copying_one_are_stored_once():
    layer = torch.nn.TransformerEncoderLayer(96, 4, 384, batch_first=True)
    check_zstd(torch.nn.TransformerEncoder(layer, 4).state_dict())


def test_a_matrix_whose_values_return_is_not_lost_among_others():
    """A Fourier transform as the first layer of a speech network."""
    angles = 2 * torch.pi * torch.arange(129)[:, None] * torch.arange(256) / 256
    transform = torch.cat([angles.cos(), -angles.sin()]) * torch.hann_window(256)
    check_zstd(
        {
            "stft.weight": (transform * 512).round() / 512,
            "lstm.weight": torch.randn(512, 256),
        }
    )


@pytest.mark.parametrize("network", ["cifar10_resnet20", "cifar10_resnet56"])
def test_real_weights_stay_at_their_entropy_and_below_zstd(network):
    if not (WEIGHTS / f"{network}.safetensors").is_file():
        pytest.skip(f"no weights of {network} here")
    state = load_file(WEIGHTS / f"{network}.safetensors")
    weights = {name: tensor for name, tensor in state.items() if tensor.ndim > 1}
    for levels, kind in (
        (3, "even"),
        (16, "mixed"),
        (64, "quantiles"),
        (256, "even"),
        (17, "pruned"),
    ):
        check_entropy(
            {name: quantized(weight, levels, kind) for name, weight in weights.items()}
        )
    check_zstd(state)
    check_zstd(
        {
            name: torch.where(t.abs() > t.abs().mean(), t, 0.0)
            for name, t in weights.items()
        }
    )


def test_tensors_that_have_nothing_in_common_are_not_coded_together():
    """In one a code tells the next one, in the other whole rows return."""
    rng = np.random.default_rng(0)
    table = torch.linspace(-1, 1, 16)
    noise = rng.normal(size=(128, 401))
    likely = np.clip(np.round(2 * (noise[:, 1:] + noise[:, :-1]) + 8), 0, 15)
    returning = np.repeat(rng.integers(0, 16, (10, 500)), 8, axis=0)
    tensors = {
        f"{i}.weight": CompressedTensor(
            shape=codes.shape,
            codes=torch.from_numpy(codes.astype(np.uint8)),
            codebook=table,
        )
        for i, codes in enumerate((likely, returning))
    }
    alone = sum(coded_bytes({name: tensor}) for name, tensor in tensors.items())
    assert coded_bytes(tensors) <= alone


def unlike(count, shape, levels, rng):
    """Tensors of codes whose frequencies have nothing to do with each other."""
    return {
        f"{i}.weight": CompressedTensor(
            shape=shape,
            codes=torch.from_numpy(
                rng.choice(levels, shape, p=rng.dirichlet(np.full(levels, 0.5))).astype(
                    np.uint8
                )
            ),
            codebook=torch.arange(levels) / 7,
        )
        for i in range(count)
    }


@pytest.mark.parametrize("levels", [2, 3, 4, 8, 16, 64])
def test_many_tensors_of_unlike_frequencies_stay_at_their_entropy(levels):
    check_entropy(unlike(60, (96, 128), levels, np.random.default_rng(levels)))


@given(st.integers(9, 70), st.integers(0, 2**32), st.data())
@settings(max_examples=15, deadline=None)
def test_any_number_of_tensors_stays_at_the_entropy_of_each(count, seed, data):
    levels = data.draw(st.sampled_from([2, 3, 4, 7, 16, 32, 100]))
    shape = data.draw(st.sampled_from([(64, 100), (48, 16, 3, 3), (5000,)]))
    check_entropy(unlike(count, shape, levels, np.random.default_rng(seed)))


def test_among_many_tensors_those_that_repeat_themselves_are_coded_apart():
    rng = np.random.default_rng(0)
    others = unlike(20, (96, 128), 8, rng)
    repeating = {
        f"{i}.repeating": CompressedTensor(
            shape=(128, 128),
            codes=torch.from_numpy(rng.integers(0, 8, (8, 128), np.uint8)).repeat(
                16, 1
            ),
            codebook=torch.arange(8) / 7,
        )
        for i in range(5)
    }
    alone = coded_bytes(others) + coded_bytes(repeating)
    assert coded_bytes(others | repeating) <= 1.001 * alone


def test_boxes_that_differ_in_sign_keep_their_own_statistics_without_neighbours():
    """One tensor is mostly negative and one mostly positive, and what stands beside a
    code says nothing.
    """
    rng = np.random.default_rng(0)
    tensors = {
        f"{i}.weight": quantized(noise("normal", (64, 48, 3, 3), rng), 3, "even")
        for i in range(2)
    }
    alone = sum(coded_bytes({name: tensor}) for name, tensor in tensors.items())
    assert coded_bytes(tensors) <= alone
    check_entropy(tensors)
