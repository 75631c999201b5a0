"""Sizes that the coder has reached: what it knows about neighbours and kinds of arrays
is worth bytes.
"""

from pathlib import Path

import torch

from tersify.codec import open, save

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
