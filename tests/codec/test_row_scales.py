"""Weights that are whole steps of a scale for each row are found by `pack`, however
short the rows and however many the steps, and come back bit for bit.
"""

import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import tersify
from tersify import CompressedTensor
from tersify.codec import detect as detection
from tersify.codec import native
from tersify.codec.detect import detect
from tersify.codec.steps import steps_of
from tersify.tensor.compressed import same_bits

pytestmark = pytest.mark.skipif(
    native.extension() is None, reason="tersify._codec is not built"
)
SHAPES = [(96, 1, 3, 3), (960, 1, 5, 5), (96, 16, 1, 1), (512, 64), (64, 3, 7, 7)]


def noise(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def by_rows(weight, per_row):
    return per_row.reshape(-1, *[1] * (weight.ndim - 1))


def symmetric(weight, bits):
    """Whole numbers and a scale for each row, and the tensor that they make."""
    top = 2 ** (bits - 1) - 1
    scale = by_rows(weight, weight.flatten(1).abs().amax(1) / top)
    return (weight / scale).round().clamp(-top, top) + 0.0, scale


def affine(weight, bits=8):
    """As `torch.fake_quantize_per_channel_affine` does it, with a zero point a row."""
    low = by_rows(weight, weight.flatten(1).amin(1).clamp(max=0))
    high = by_rows(weight, weight.flatten(1).amax(1).clamp(min=0))
    scale = (high - low) / (2**bits - 1)
    zero = (-low / scale).round()
    return (weight / scale + zero).round().clamp(0, 2**bits - 1) - zero, scale


def by_hand(steps, scale):
    levels = steps.unique()
    levels = torch.cat([levels[levels == 0], levels[levels != 0]])
    codes = (steps[..., None] == levels).to(torch.uint8).argmax(-1).to(torch.uint8)
    return CompressedTensor(
        shape=tuple(steps.shape), codes=codes, codebook=levels, scale=scale
    )


def zstd_bytes(tensor):
    raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return len(zstandard.ZstdCompressor(level=19).compress(raw))


@pytest.mark.parametrize("bits", [4, 5, 6, 7, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_short_rows_of_whole_steps_take_what_codes_made_by_hand_take(
    shape, bits, tmp_path
):
    made = by_hand(*symmetric(noise(shape), bits))
    weight = made.to_dense()
    size = tersify.save({"weight": weight}, tmp_path / "found.terse")
    hand = tersify.save({"weight": made}, tmp_path / "hand.terse")
    assert size <= 1.01 * hand
    assert same_bits(
        tersify.open(tmp_path / "found.terse").read().state_dict()["weight"], weight
    )


@pytest.mark.parametrize("bits", [6, 7, 8])
@pytest.mark.parametrize("shape", [(64, 32, 3, 3), (500,), (300, 200)])
def test_whole_steps_of_one_scale_take_what_codes_made_by_hand_take(
    shape, bits, tmp_path
):
    state = {}
    for i in range(6):
        weight = noise(shape, i)
        scale = (weight.abs().max() / (2 ** (bits - 1) - 1)).reshape([1] * len(shape))
        state[f"{i}.weight"] = by_hand((weight / scale).round() + 0.0, scale)
    dense = {name: tensor.to_dense() for name, tensor in state.items()}
    hand = tersify.save(state, tmp_path / "hand.terse")
    assert tersify.save(dense, tmp_path / "found.terse") <= 1.005 * hand
    back = tersify.open(tmp_path / "found.terse").read().state_dict()
    assert all(same_bits(back[name], tensor) for name, tensor in dense.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(512, 64), (1024, 512), (960, 1, 5, 5), (40, 700)])
def test_rows_of_8_bits_with_zero_points_take_little_more_than_their_codes(
    shape, dtype, tmp_path
):
    steps, scale = affine(
        noise(shape).to(dtype) + 0.5 * noise(shape[:1] + (1,) * (len(shape) - 1), 1)
    )
    weight = steps * scale
    found = detect(weight)
    assert isinstance(found, CompressedTensor)
    assert same_bits(found.to_dense(), weight)
    size = tersify.save({"weight": weight}, tmp_path / "found.terse")
    assert size < 0.62 * zstd_bytes(weight)
    counts = (steps + 255).long().flatten().bincount().double()
    counts = counts[counts > 0]
    entropy = float((counts * (counts.sum() / counts).log2()).sum()) / 8
    assert size <= 1.02 * entropy + 24 * len(weight) + 1200


def test_rows_with_zero_points_of_torch_itself_are_found():
    weight = noise((300, 128)) + 0.5 * noise((300, 1), 1)
    steps, scale = affine(weight)
    zero = -steps.amin(1).clamp(max=0)
    made = torch.fake_quantize_per_channel_affine(
        weight, scale.flatten(), zero.int(), 0, 0, 255
    )
    found = detect(made)
    assert found.axis == 0
    assert found.scale is not None
    assert same_bits(found.to_dense(), made)


def test_rows_with_zero_points_keep_the_sign_of_their_zeros():
    steps, scale = affine(noise((300, 128)) + 0.5 * noise((300, 1), 1))
    weight = torch.where(noise((300, 128), 2) < -2, -0.0, steps * scale)
    found = detect(weight)
    assert isinstance(found, CompressedTensor)
    assert same_bits(found.to_dense(), weight)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_steps_of_subnormal_numbers_are_found(dtype):
    facts = torch.finfo(dtype)
    scale = facts.smallest_normal * torch.linspace(0.02, 3, 300, dtype=dtype)[:, None]
    steps = symmetric(noise((300, 30)), 8)[0].to(dtype)
    found = detect(steps * scale)
    assert isinstance(found, CompressedTensor)
    assert found.scale is not None
    assert same_bits(found.to_dense(), steps * scale)


def test_a_product_that_the_machine_rounds_otherwise_leaves_the_tensor_dense(
    monkeypatch,
):
    steps, scale = symmetric(noise((300, 128)), 8)
    assert isinstance(detect(steps * scale), CompressedTensor)
    one_off = steps_of

    def steps_of_another_machine(found):
        new, book, scale = one_off(found)
        return new, book, scale.nextafter(scale.new_tensor(9.0))

    monkeypatch.setattr(detection, "steps_of", steps_of_another_machine)
    assert isinstance(detect(steps * scale), torch.Tensor)


@given(st.integers(0, 2**32), st.data())
@settings(max_examples=60, deadline=None)
def test_any_rows_of_whole_steps_come_back_bit_for_bit(seed, data):
    shape = data.draw(
        st.sampled_from([(8, 9), (40, 64), (300, 3), (5, 2, 3, 3), (64, 300), (9, 8)])
    )
    dtype = data.draw(
        st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16])
    )
    weight = noise(shape, seed) + data.draw(st.sampled_from([0, 0, 1])) * noise(
        shape[:1] + (1,) * (len(shape) - 1), seed + 1
    )
    bits = data.draw(st.sampled_from([2, 4, 8]))
    steps, scale = data.draw(st.sampled_from([symmetric, affine]))(weight, bits)
    made = steps.to(dtype) * scale.to(dtype)
    rng = torch.Generator().manual_seed(seed)
    if data.draw(st.booleans()):
        made = torch.where(torch.rand(shape, generator=rng) < 0.1, -0.0, made)
    if data.draw(st.booleans()):
        made[torch.rand(shape[0], generator=rng) < 0.3] = 0
    if data.draw(st.booleans()):
        made = made.movedim(0, 1).contiguous()
    found = detect(made)
    dense = found.to_dense() if isinstance(found, CompressedTensor) else found
    assert same_bits(dense, made)
    packed = tersify.pack({"w": made}).state_dict()["w"]
    assert same_bits(packed, made)
