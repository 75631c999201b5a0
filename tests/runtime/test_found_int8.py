"""int8 against the module itself: a factor without an offset, and an offset without a
factor, behind a sum.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from against_torch import check, thinned_
from torch import Tensor, nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")

# of the largest output: 8-bit activations, summed over a few dozen weights
INT8_BOUND = 0.06


class Summed(nn.Module):
    """A ternary convolution, its input added, and something behind the sum."""

    def __init__(self, behind: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.behind = behind
        self.register_buffer("channel_scale", 1 + torch.arange(8.0).view(8, 1, 1))
        self.register_buffer("channel_shift", torch.arange(8.0).view(8, 1, 1) - 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.behind(self, self.conv(x) + x)


BEHIND: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "factor": lambda m, y: y * 2,
    "divided": lambda m, y: y / 4,
    "offset": lambda m, y: y + 3,
    "subtracted": lambda m, y: y - 2,
    "channel_factor": lambda m, y: y * m.channel_scale,
    "channel_offset": lambda m, y: y + m.channel_shift,
    "both": lambda m, y: y * m.channel_scale + m.channel_shift,
    "offset_then_factor": lambda m, y: (y + m.channel_shift) * m.channel_scale,
    "factor_then_relu": lambda m, y: torch.relu(y * 2),
    "negated_then_relu": lambda m, y: torch.relu(y * -1),
    "relu_then_factor": lambda m, y: torch.relu(y) * 2,
    "relu_then_offset": lambda m, y: torch.relu(y) + 1,
}


@pytest.mark.parametrize("precision", ["fp32", "int8", "auto"])
@pytest.mark.parametrize("behind", BEHIND)
def test_what_stands_behind_a_sum_is_not_lost(behind, precision, isa):
    model = thinned_(Summed(BEHIND[behind]), 0.5, ternary=True).eval()
    x = torch.randn(4, 8, 9, 9)
    fast = compile(model, x, precision=precision, calibration=[x, x.flip(-1)])
    bound = 2e-5 if precision == "fp32" else INT8_BOUND
    for batch in (4, 1, 3):
        # in the calibrated range, and not the same
        check(fast, model, x[:batch].flip(-1).contiguous(), bound=bound)


class TwoSums(nn.Module):
    """Two convolutions in a row, each with its input added and scaled, so that the
    first result is requantized.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = (self.first(x) + x) * 0.5
        return (self.second(y) + y) - 0.25


@pytest.mark.parametrize("precision", ["fp32", "int8", "auto"])
def test_scaled_sums_in_a_row_are_right(precision):
    model = thinned_(TwoSums(), 0.6, ternary=True).eval()
    x = torch.randn(4, 8, 9, 9)
    fast = compile(model, x, precision=precision, calibration=x)
    check(
        fast,
        model,
        x[:3].flip(-1).contiguous(),
        bound=2e-5 if precision == "fp32" else INT8_BOUND,
    )


def outlier_network() -> tuple[nn.Module, Tensor]:
    """One input is a thousand times the others, and no weight reads it: eight bits see
    nothing else.
    """
    model = thinned_(
        nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)),
        zeros=0.5,
        ternary=True,
    ).eval()
    model[0].weight.data[:, 0] = 0
    x = torch.randn(4, 256, generator=torch.Generator().manual_seed(0))
    x[:, 0] = 1e5
    return model, x


def test_int8_that_leaves_little_of_the_outputs_says_so():
    model, x = outlier_network()
    with pytest.warns(
        RuntimeWarning, match=r"with precision='int8' the outputs are \d+ % off"
    ):
        compile(model, x, precision="int8")


def test_auto_does_not_round_where_little_would_be_left():
    model, x = outlier_network()
    check(compile(model, x, precision="auto", calibration=[x]), model, x)
