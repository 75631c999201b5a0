"""Sizes that the coder has reached: what it knows about neighbours and kinds of arrays
is worth bytes.
"""

from pathlib import Path

import torch

from tersify.codec import open, save
from tersify.compensated.rates import entropy_bits_by_scale
from tersify.compensated.steps import packed_steps

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_network_of_many_levels_is_no_larger_than_its_example(tmp_path):
    """Levels far from zero come in clusters: without that context the file grows by 3.6
    %.
    """
    example = EXAMPLES / "speech-mask.terse"
    assert (
        save(open(example).read(), tmp_path / "m.terse")
        <= 1.005 * example.stat().st_size
    )


def test_a_ternary_network_is_no_larger_than_its_example(tmp_path):
    example = EXAMPLES / "resnet20-star.terse"
    assert (
        save(open(example).read(), tmp_path / "m.terse")
        <= 1.001 * example.stat().st_size
    )


def test_arrays_of_different_sizes_have_statistics_of_their_own(tmp_path):
    """Exponents of weights that differ by powers of two: with shared statistics they
    take 1.9 % more.
    """
    generator = torch.Generator().manual_seed(0)
    state = {
        f"{i}.weight": torch.randn(64, 64, generator=generator) * 2.0 ** -(i % 6)
        for i in range(12)
    }
    assert save(state, tmp_path / "m.terse") <= 164_200


def test_rows_and_columns_of_many_sizes_come_near_their_entropy(tmp_path):
    """Classes of rows and of columns that are rounded each for itself take 0.3 % more."""
    generator = torch.Generator().manual_seed(0)
    sizes = (torch.randn(768, 1, generator=generator) * 0.35).exp()
    sizes = sizes * (torch.randn(1, 576, generator=generator) * 0.45).exp()
    wholes = (2 * sizes * torch.randn(768, 576, generator=generator)).round()
    wholes = wholes.clamp(-127, 127)
    predicted = entropy_bits_by_scale(wholes) * wholes.numel() / 8
    rows = torch.ones(768)
    packed = packed_steps(wholes.to(torch.int8), rows, torch.ones(576))
    assert save({"weight": packed}, tmp_path / "m.terse") <= 1.0065 * predicted + 1000
