"""Numbers that return, of any width: short floats of few levels, rows of their own
values, coarse grids. What codes cannot say is left to zstd, so that no file is larger.
"""

import pytest
import torch
import zstandard

import tersify
from tersify import CompressedTensor
from tersify.codec import native
from tersify.codec.detect import detect
from tersify.tensor.compressed import same_bits

pytestmark = pytest.mark.skipif(
    native.extension() is None, reason="tersify._codec is not built"
)
CONTAINER_BYTES = 400
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def whole(low, high, *shape):
    return torch.randint(
        low, high, shape, generator=torch.Generator().manual_seed(0)
    ).float()


def check(tensor, path):
    size = tersify.save({"weight": tensor}, path)
    back = tersify.open(path).read().state_dict()["weight"]
    assert same_bits(back, tensor)
    raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    zipped = zstandard.ZstdCompressor(level=19).compress(raw)
    assert size <= len(zipped) + CONTAINER_BYTES
    return size


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("levels", [2, 3, 4, 9, 16])
def test_few_levels_in_8_bits_are_codes(levels, dtype, tmp_path):
    weight = (whole(0, levels, 256, 1024) - levels // 2).to(dtype)
    assert isinstance(detect(weight), CompressedTensor)
    bits = torch.tensor(float(levels)).log2()
    assert check(weight, tmp_path / "w.terse") <= 1.01 * bits * 32768 + CONTAINER_BYTES


@pytest.mark.parametrize("dtype", FLOAT8)
def test_zeros_and_levels_of_rows_in_8_bits_are_found_too(dtype, tmp_path):
    pruned = torch.where(numbers(256, 512) > 1.2, numbers(256, 512), 0.0).to(dtype)
    check(pruned, tmp_path / "w.terse")
    table = numbers(64, 4, seed=1).to(dtype).view(torch.uint8)
    rows = table.gather(1, whole(0, 4, 64, 1000).long()).view(dtype)
    found = detect(rows)
    assert isinstance(found, CompressedTensor)
    assert found.axis == 0
    check(rows, tmp_path / "w.terse")


@pytest.mark.parametrize("dtype", FLOAT8)
def test_special_values_in_8_bits_come_back(dtype):
    patterns = torch.tensor([0, 0x80, 0x7F, 0xFF, 1, 0x81, 0x7C], dtype=torch.uint8)
    weight = patterns[whole(0, 7, 90, 100).long()].view(dtype)
    found = detect(weight)
    assert isinstance(found, CompressedTensor)
    assert same_bits(found.to_dense(), weight)


@pytest.mark.parametrize("rows", [256, 1024, 2048])
def test_values_that_return_in_their_row_alone_take_no_more_than_zstd(rows, tmp_path):
    own = numbers(rows, 100)
    check(own.gather(1, whole(0, 100, rows, 128).long()), tmp_path / "w.terse")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [300, 512, 1024])
def test_a_coarse_grid_takes_no_more_than_zstd(size, dtype, tmp_path):
    check(((numbers(size, size) * 80).round() * 0.01).to(dtype), tmp_path / "w.terse")
