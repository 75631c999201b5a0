"""A checksum of a tensor changes with every edit that people make, and with no thread."""

from __future__ import annotations

import pytest
import torch

from tersify.runtime.checksums import checksum, checksum_by_torch

runtime = pytest.importorskip("tersify._runtime")

EDITS = {
    "one number": lambda w: w[3].add_(1e-3),
    "the last number": lambda w: w[-1].add_(1e-3),
    "one sign": lambda w: w[7].neg_(),
    "two signs": lambda w: w[torch.tensor([8, 24])].neg_(),
    "all signs": lambda w: w.neg_(),
    "two places": lambda w: w.copy_(w.roll(1)),
    "two neighbours": lambda w: w[:2].copy_(w[:2].flip(0)),
    "another order": lambda w: w.copy_(w.flip(0)),
    "a scale": lambda w: w.mul_(2),
}


def edited(weight: torch.Tensor, name: str) -> torch.Tensor:
    made = weight.clone()
    if name == "two signs":
        made[8] *= -1
        made[24] *= -1
        return made
    EDITS[name](made)
    return made


@pytest.mark.parametrize("sums", [checksum, checksum_by_torch])
@pytest.mark.parametrize("count", [33, 4096, 300_001, 800_000])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_changes_it(sums, count, edit):
    weight = torch.randn(count, generator=torch.Generator().manual_seed(count))
    assert sums(weight) == sums(weight.clone())
    assert sums(edited(weight, edit)) != sums(weight)


@pytest.mark.parametrize("place", [0, 1, 777, 1 << 18, (1 << 20) - 1])
@pytest.mark.parametrize("bit", [0, 22, 23, 30, 31])
def test_one_bit_anywhere_changes_it(place, bit):
    bits = torch.zeros(1 << 20, dtype=torch.int32)
    before = checksum(bits)
    bits[place] = -(1 << 31) if bit == 31 else 1 << bit
    assert checksum(bits) != before


def test_it_does_not_depend_on_threads():
    weight = torch.randn(3_000_017)
    sums = {
        runtime.checksum(weight.data_ptr(), weight.numel() * 4, threads)
        for threads in (1, 2, 3, 7)
    }
    assert len(sums) == 1


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool]
)
def test_tensors_of_every_type_and_none_have_one(dtype):
    numbers = (torch.arange(37) % 2).to(dtype)
    assert checksum(numbers) != checksum(numbers.flip(0)[:36])
    assert checksum(numbers.reshape(37, 1).t()) == checksum(numbers)
    assert checksum(numbers[:0]) == checksum(numbers[:0].clone())


def test_what_lies_in_memory_in_another_way_has_the_checksum_of_its_numbers():
    numbers = torch.randn(5, 3)
    assert checksum(torch._neg_view(-numbers)) == checksum(numbers)
    assert checksum(numbers.t().contiguous().t()) == checksum(numbers)
    waves = torch.randn(4, dtype=torch.cfloat)
    assert checksum(waves.conj()) == checksum(waves.conj().resolve_conj())
    zeros = torch._efficientzerotensor((5, 3))
    assert checksum(zeros) == checksum(torch.zeros(5, 3))
