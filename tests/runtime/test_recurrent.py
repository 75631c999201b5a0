"""LSTM and GRU layers in the engine: every direction, depth, batch and density, against
torch itself.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")


class Listener(nn.Module):
    def __init__(self, kind, *, zeros: float, **options) -> None:
        super().__init__()
        self.layers = kind(12, 20, **options)
        for weight in self.layers.parameters():
            if weight.ndim == 2:
                weight.data *= torch.rand_like(weight) >= zeros

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states, last = self.layers(x)
        return states, last[0] if isinstance(last, tuple) else last


DEPTHS = [
    {"batch_first": True},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 3, "batch_first": True, "bidirectional": True, "bias": False},
]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("zeros", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("options", DEPTHS)
def test_states_are_torchs_own(isa, kind, zeros, options):
    model = Listener(kind, zeros=zeros, **options).eval()
    for batch, steps in ((1, 7), (3, 5), (4, 1)):
        shape = (batch, steps, 12) if options.get("batch_first") else (steps, batch, 12)
        x = torch.randn(shape)
        fast = compile(model, x, threads=2, strict=True)
        assert "0 torch calls" in fast.plan.describe()
        with torch.no_grad():
            wanted = model(x)
        for made, right in zip(fast(x), wanted, strict=True):
            assert made.shape == right.shape
            assert (made - right).abs().max() <= 2e-5 * max(
                1e-3, float(right.abs().max())
            )


def test_a_ternary_matrix_with_a_scale_a_row_keeps_its_scale():
    model = Listener(nn.LSTM, zeros=0.5, batch_first=True).eval()
    for weight in model.layers.parameters():
        if weight.ndim == 2:
            weight.data = weight.data.sign() * torch.linspace(
                0.1, 0.5, len(weight)
            ).unsqueeze(1)
    x = torch.randn(2, 9, 12)
    with torch.no_grad():
        wanted = model(x)[0]
    assert (
        compile(model, x, strict=True)(x)[0] - wanted
    ).abs().max() <= 2e-5 * wanted.abs().max()


class Continued(nn.Module):
    """Begins with a state of its own, another for every item."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.GRU(12, 20, batch_first=True)
        self.register_buffer("first", torch.randn(1, 2, 20))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x, self.first)[0]


def test_a_layer_that_begins_elsewhere_stays_with_torch():
    x = torch.randn(2, 9, 12)
    model = Continued().eval()
    fast = compile(model, x)
    assert "differs among the items" in fast.plan.describe()
    with torch.no_grad():
        assert torch.allclose(fast(x), model(x), atol=1e-6)
