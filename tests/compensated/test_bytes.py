"""The bytes of steps in the file: near what the sizes of rows and columns foretell,
never above the plain entropy.
"""

from __future__ import annotations

import torch

import tersify
from tersify.compensated.rates import entropy_bits_by_scale
from tersify.compensated.steps import MOST_STEPS, coarse, packed_steps
from tersify.tensor import entropy_bits


def matrix(bits_wide: float):
    """Weights whose rows and columns are of different sizes, as one constant for all
    steps makes them.
    """
    torch.manual_seed(0)
    rows, columns = (
        torch.randn(900, 1).mul(0.5).exp(),
        torch.randn(1, 700).mul(0.5).exp(),
    )
    wholes = (
        (torch.randn(900, 700) * rows * columns * bits_wide)
        .round()
        .clamp(-MOST_STEPS, MOST_STEPS)
    )
    return packed_steps(wholes.to(torch.int8), coarse(rows[:, 0]), coarse(columns[0]))


def test_codes_take_what_the_sizes_of_rows_and_columns_foretell(tmp_path):
    for wide in (0.5, 1.5, 4.0):
        packed = matrix(wide)
        path = tmp_path / "w.terse"
        tersify.save({"w": packed}, path)
        file = tersify.open(path)
        (entry,) = file.directory.entries
        groups = {group for group, _, _ in file.contents.spans(entry, "codes")}
        written = 8 * sum(file.group_bytes(group) for group in groups) / packed.numel()
        foretold = entropy_bits_by_scale(packed.codebook[packed.codes.int()])
        # the classes of rows and columns are told too
        assert written < 1.01 * foretold + 0.01
        assert written < 0.97 * entropy_bits([packed])


def test_steps_of_rows_and_columns_take_few_bits(tmp_path):
    packed = matrix(1.0)
    with_steps = tersify.save({"w": packed}, tmp_path / "a.terse")
    ones = packed_steps(
        packed.codebook[packed.codes.int()].to(torch.int8),
        torch.ones(900),
        torch.ones(700),
    )
    without = tersify.save({"w": ones}, tmp_path / "b.terse")
    assert 8 * (with_steps - without) / (900 + 700) < 6.5


def test_coarse_steps_are_within_a_tenth():
    steps = torch.rand(1000) * 10 + 1e-3
    ratio = coarse(steps) / steps
    assert float(ratio.max()) < 1.1
    assert float(ratio.min()) > 0.9
    assert torch.equal(coarse(coarse(steps)), coarse(steps))
