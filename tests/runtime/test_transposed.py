"""Transposed convolutions of one and two dimensions, for every stride, padding and
output padding.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")


@pytest.mark.parametrize("zeros", [0.0, 0.9])
@pytest.mark.parametrize("dimensions", [1, 2])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "more"),
    [
        (3, 2, 1, 1),
        (4, 2, 1, 0),
        (3, 1, 1, 0),
        (2, 2, 0, 0),
        (5, 3, 2, 2),
        (1, 2, 0, 1),
        (3, 4, 0, 3),
        (7, 2, 6, 0),
    ],
)
def test_phases_land_where_torch_puts_them(
    isa, zeros, dimensions, kernel, stride, padding, more
):
    first, kind = (
        (nn.Conv1d, nn.ConvTranspose1d)
        if dimensions == 1
        else (nn.Conv2d, nn.ConvTranspose2d)
    )
    layer = kind(6, 5, kernel, stride, padding, more, bias=padding > 0)
    layer.weight.data *= torch.rand_like(layer.weight) >= zeros
    model = nn.Sequential(first(3, 6, 3), layer, nn.ReLU()).eval()
    for batch in (1, 3):
        x = torch.randn(batch, 3, *(9, 7)[:dimensions])
        fast = compile(model, x, threads=2, strict=True)
        assert "transposed conv" in fast.plan.describe()
        with torch.no_grad():
            wanted = model(x)
        made = fast(x)
        assert made.shape == wanted.shape
        assert (made - wanted).abs().max() <= 2e-5 * max(
            1e-3, float(wanted.abs().max())
        )


@pytest.mark.parametrize("options", [{"groups": 2}, {"dilation": 2}])
def test_groups_and_dilations_stay_with_torch(options):
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ConvTranspose2d(6, 4, 3, **options)
    ).eval()
    x = torch.randn(2, 3, 8, 8)
    fast = compile(model, x)
    assert "groups or dilations have no kernel" in fast.plan.describe()
    with torch.no_grad():
        assert torch.allclose(fast(x), model(x), atol=1e-5)
