"""Sparsity and entropy against figures worked out by hand."""

import math

import pytest
import torch

from tersify import CompressedTensor
from tersify.tensor import code_counts, entropy_bits, latent_histogram, sparsity_percent


def ternary(counts):
    codes = torch.repeat_interleave(
        torch.arange(3, dtype=torch.uint8), torch.tensor(counts)
    )
    return CompressedTensor(
        shape=tuple(codes.shape), codes=codes, codebook=torch.tensor([0.0, 1.0, -1.0])
    )


def test_sparsity_and_entropy_are_joint_over_the_network():
    first, second = ternary([8, 1, 1]), ternary([0, 5, 5])
    assert sparsity_percent([first]) == 80
    assert sparsity_percent([first, second]) == 40
    assert entropy_bits([second]) == 1.0
    fraction = torch.tensor([8, 6, 6]) / 20
    assert entropy_bits([first, second]) == pytest.approx(
        float(-(fraction * fraction.log2()).sum())
    )


def test_binary_codes_have_no_zeros_whatever_code_0_is():
    codes = torch.tensor([0, 0, 1, 1], dtype=torch.uint8)
    binary = CompressedTensor(
        shape=(4,), codes=codes, codebook=torch.tensor([1.0, -1.0])
    )
    assert sparsity_percent([binary]) == 0
    assert entropy_bits([binary]) == 1.0


def test_a_pruned_tensor_counts_its_mask_and_the_width_of_its_survivors():
    mask = torch.tensor([1, 0, 0, 0], dtype=torch.uint8)
    pruned = CompressedTensor(shape=(4,), codes=mask, values=torch.tensor([3.0]))
    assert sparsity_percent([pruned]) == 75
    mask_bits = -(0.25 * math.log2(0.25) + 0.75 * math.log2(0.75))
    assert entropy_bits([pruned]) == pytest.approx(mask_bits + 32 / 4)


def test_groups_of_levels_are_counted_by_their_own_zero():
    codes = torch.zeros(2, 3, dtype=torch.uint8)
    codebook = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    assert (
        sparsity_percent(
            [CompressedTensor(shape=(2, 3), codes=codes, codebook=codebook, axis=0)]
        )
        == 50
    )


def test_a_scale_of_zero_makes_zeros():
    tensor = ternary([0, 2, 2])
    scaled = CompressedTensor(
        shape=(4,),
        codes=tensor.codes,
        codebook=tensor.codebook,
        scale=torch.tensor([0.0, 1, 1, 1]),
    )
    assert sparsity_percent([scaled]) == 25


def test_empty_input_measures_as_zero():
    assert sparsity_percent([]) == 0.0
    assert entropy_bits([]) == 0.0


def test_histograms_count_every_weight():
    assert code_counts(ternary([3, 2, 1])).tolist() == [3, 2, 1]
    histogram = latent_histogram(torch.tensor([-3.0, -0.5, 0.0, 0.5, 3.0]), bins=4)
    assert histogram["counts"] == [1, 1, 1, 2]
    assert histogram["edges"] == [-1, -0.5, 0, 0.5, 1]


@pytest.mark.parametrize(
    ("dtype", "bits"), [(torch.float16, 16), (torch.float32, 32), (torch.float64, 64)]
)
def test_a_survivor_counts_the_bits_of_its_own_type(dtype, bits):
    pruned = CompressedTensor(
        shape=(4,),
        codes=torch.ones(4, dtype=torch.uint8),
        values=torch.arange(1, 5, dtype=dtype),
    )
    assert entropy_bits([pruned]) == bits
