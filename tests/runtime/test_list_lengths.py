"""Lists are read some entries ahead: rows of every short length agree with torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")
ROWS = 24
LEVELS = {"signs": [1.0], "tables": [0.25, 1.0], "values": None}


def rows_of_every_length(kind: str, generator: torch.Generator) -> torch.Tensor:
    """Row r has r weights that are not zero."""
    weight = torch.zeros(ROWS, 8 * 9)
    for row in range(ROWS):
        at = torch.randperm(8 * 9, generator=generator)[:row]
        drawn = torch.randn(row, generator=generator)
        levels = LEVELS[kind]
        if levels is not None:
            chosen = torch.randint(len(levels), (row,), generator=generator)
            drawn = drawn.sign() * torch.tensor(levels)[chosen]
        weight[row, at] = drawn
    return weight.view(ROWS, 8, 3, 3)


@pytest.mark.parametrize("kind", LEVELS)
@pytest.mark.parametrize("side", [1, 5, 16])
def test_rows_of_every_length_agree_with_torch_at_several_sizes(kind, side):
    generator = torch.Generator().manual_seed(side)
    layer = nn.Conv2d(8, ROWS, 3, padding=1)
    layer.weight.data = rows_of_every_length(kind, generator)
    fast = compile(layer.eval(), torch.randn(2, 8, side, side, generator=generator))
    for items in (1, 2, 17):  # other sizes have other positions in the lists
        x = torch.randn(items, 8, side, side, generator=generator)
        with torch.no_grad():
            wanted = layer(x)
        error = (fast(x) - wanted).abs().max() / wanted.abs().max()
        assert error <= 2e-6
