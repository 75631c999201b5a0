"""Dense layers with rows in lanes: images that lie pixel by pixel, and what stands
between their convolutions.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")


class Faces(nn.Module):
    """Convolutions with PReLUs, pools, a residual and heads, as detectors have them."""

    def __init__(self, widths=(3, 10, 16, 33)):
        super().__init__()
        first, second, third, fourth = widths
        self.conv1, self.prelu1 = nn.Conv2d(first, second, 3), nn.PReLU(second)
        self.conv2, self.prelu2 = (
            nn.Conv2d(second, third, 3, padding=1),
            nn.PReLU(third),
        )
        self.conv3 = nn.Conv2d(third, third, 3, padding=1)
        self.conv4, self.prelu4 = (
            nn.Conv2d(third, fourth, 2, dilation=2),
            nn.PReLU(fourth),
        )
        self.head = nn.Conv2d(fourth, 2, 1)
        for module in self.modules():
            if isinstance(module, nn.PReLU):
                module.weight.data = torch.linspace(-0.5, 1.5, module.num_parameters)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.prelu1(self.conv1(x)), 3, 2, ceil_mode=True)
        x = self.prelu2(self.conv2(x))
        x = x + self.conv3(x)
        x = nn.functional.avg_pool2d(x, 3, 2, padding=1, count_include_pad=False)
        return self.head(self.prelu4(self.conv4(x)))


def close(model, x, **options):
    fast = compile(model.eval(), x, **options)
    with torch.no_grad():
        wanted = model(x)
    return (fast(x) - wanted).abs().max() <= 2e-5 * wanted.abs().max()


@pytest.fixture
def dense(costs):
    """Every layer is cheapest dense in the engine."""
    costs(
        **{
            f"{call}_{kernel}": 1e6
            for call in ("conv", "rows", "vector")
            for kernel in ("float", "table", "sign", "dense")
        }
    )


@pytest.mark.parametrize("size", [(40, 40), (17, 29)])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_detector_equals_its_module(isa, dense, size, threads):
    torch.manual_seed(0)
    assert close(Faces(), torch.randn(2, 3, *size), threads=threads)


def test_a_prelu_is_part_of_its_convolution(dense):
    x = torch.randn(1, 3, 40, 40)
    fast = compile(Faces().eval(), x, threads=1)
    times = [op.microseconds for op in fast.profile(x, repeats=1) if op.kind == "prelu"]
    assert times == [0.0] * 3


def test_a_prelu_that_others_must_not_see_stays_behind_its_convolution(isa, dense):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.prelu = nn.Conv2d(3, 20, 3), nn.PReLU(20)

        def forward(self, x):
            y = self.conv(x)
            return self.prelu(y) - y

    assert close(Both(), torch.randn(2, 3, 9, 9))


def test_windows_over_signals_are_single_runs(isa, dense):
    model = nn.Sequential(
        nn.Conv2d(1, 20, (40, 1), (4, 1)),
        nn.ReLU(),
        nn.MaxPool2d((2, 1)),
        nn.Conv2d(20, 16, (9, 1)),
        nn.AdaptiveAvgPool2d(1),
    )
    assert close(model, torch.randn(3, 1, 200, 1))


def test_linear_layers_of_few_and_many_vectors(isa, dense):
    model = nn.Sequential(nn.Linear(33, 70), nn.GELU(), nn.Linear(70, 5))
    for n in (1, 3, 50):
        assert close(model, torch.randn(n, 33), threads=2)
