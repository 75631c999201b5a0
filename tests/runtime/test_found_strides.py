"""Whether a write in place reaches a value may depend on strides: `reshape` and
`contiguous` copy where they must.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from against_torch import check
from torch import nn

from tersify.runtime import compile, compiling

pytest.importorskip("tersify._runtime")


class Forward(nn.Module):
    """A forward from a function."""

    def __init__(self, forward):
        super().__init__()
        self.function = forward
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.function(self, x)


def reshaped_then_written(self, x):
    y = (x * 2).relu()
    flat = y.reshape(-1, 1)
    y.mul_(-1)
    return flat


def copied_by_reshape_then_written(self, x):
    y = x * 2
    flat = y.permute(2, 1, 0).reshape(-1)
    y.mul_(-1)
    return flat


def put_in_order_then_written(self, x):
    y = x * 2
    y.contiguous().add_(1)
    return y


def input_permuted_and_flattened_then_written(self, x):
    x.permute(2, 1, 0).flatten(0, 1).relu_()
    return x * 1


def copied_to_channels_last_then_written(self, x):
    y = x[:, None] * 2
    y.contiguous(memory_format=torch.channels_last).add_(1)
    return y


def copied_by_to_then_written(self, x):
    y = x[:, None] * 2
    y.to(memory_format=torch.channels_last).add_(1)
    return y


def read_by_strides(self, x):
    return (x * 2).as_strided((3,), (2,), 1)


def branches_on_strides(self, x):
    return self.layer(x) if x.is_contiguous() else x * 3


def layer_between(self, x):
    y = self.layer(x.flip(0))
    z = y.flatten()
    y.tanh_()
    return z, y


FORWARDS = [
    reshaped_then_written,
    copied_by_reshape_then_written,
    put_in_order_then_written,
    input_permuted_and_flattened_then_written,
    copied_to_channels_last_then_written,
    copied_by_to_then_written,
    read_by_strides,
    branches_on_strides,
    layer_between,
]


def layouts():
    x = torch.randn(2, 3, 4)
    return {
        "in order": x,
        "transposed": x.mT.contiguous().mT,
        "batch last": x.movedim(0, -1).contiguous().movedim(-1, 0),
        "back to front": x.permute(2, 1, 0).contiguous().permute(2, 1, 0),
        "every second": torch.randn(2, 3, 8)[..., ::2],
        "one item": torch.randn(1, 3, 4),
        "one item, batch last": torch.randn(3, 4, 1).movedim(-1, 0),
    }


@pytest.mark.parametrize("forward", FORWARDS, ids=lambda f: f.__name__)
def test_a_write_reaches_what_it_reaches_in_torch_whatever_the_strides(forward):
    model = Forward(forward).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast = compile(model, torch.randn(2, 3, 4))
        for x in layouts().values():
            for _ in range(2):
                check(fast, model, x.clone(memory_format=torch.preserve_format))


@pytest.mark.parametrize(
    "forward",
    [f for f in FORWARDS if "input" not in f.__name__],
    ids=lambda f: f.__name__,
)
def test_an_expanded_input_is_taken_where_nothing_is_written_to_it(forward):
    model = Forward(forward).eval()
    fast = compile(model, torch.randn(2, 3, 4))
    check(fast, model, torch.randn(1, 3, 4).expand(2, 3, 4))
    check(fast, model, torch.randn(2, 3, 1).expand(2, 3, 4))


def test_an_expanded_input_that_is_written_to_is_refused():
    fast = compile(Forward(lambda self, x: x.relu_()).eval(), torch.randn(2, 3, 4))
    before = torch.randn(2, 3, 1)
    x = before.clone()
    with pytest.raises(ValueError, match="numbers share memory"):
        fast(x.expand(2, 3, 4))
    assert torch.equal(x, before)


def test_a_write_to_one_position_of_an_expanded_input_is_refused():
    """In torch it changes all positions, since they are one number."""

    def forward(self, x):
        x[-1].mul_(2)
        return x * 1

    fast = compile(Forward(forward).eval(), torch.randn(2))
    with pytest.raises(ValueError, match="numbers share memory"):
        fast(torch.ones(1).expand(2))


@pytest.mark.filterwarnings("ignore:precision=.int8. changes nothing")
@pytest.mark.parametrize("precision", ["fp32", "int8", "auto"])
def test_calibration_batches_and_profiles_may_be_strided(precision):
    model = nn.Sequential(nn.GroupNorm(1, 4), nn.Conv2d(4, 4, 1)).eval()
    strided = torch.randn(2, 8, 8, 4).movedim(-1, 1)
    fast = compile(
        model, torch.randn(2, 4, 8, 8), precision=precision, calibration=[strided]
    )
    check(fast, model, strided, bound=2e-5 if precision == "fp32" else 0.1)
    assert fast.profile(strided, repeats=1)


def test_strides_of_axes_of_one_item_are_not_taken_for_another_order():
    """A group norm asks for the order that torch guesses from them."""
    model = nn.Sequential(nn.ReLU(), nn.GroupNorm(1, 1)).eval()
    fast = compile(model, torch.randn(2, 1, 3, 8, 2)[:, :, 0])
    x = torch.randn(1, 1, 8, 2).to(memory_format=torch.channels_last)
    assert x.is_contiguous()
    check(fast, model, x)

    class Expanded(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.GroupNorm(1, 1)

        def forward(self, x):
            wide = x.unsqueeze(-2).expand(-1, -1, -1, 3, -1)
            return self.norm(torch.relu(wide + wide))

    model = Expanded().eval()
    check(compile(model, torch.randn(2, 1, 8, 2)), model, x)


@pytest.mark.filterwarnings("ignore:precision=.int8. changes nothing")
@pytest.mark.parametrize(
    "between",
    [
        lambda x: x * 2,
        torch.relu,
        lambda x: x.softmax(-1),
        lambda x: torch.cat([x, x], 1),
        lambda x: x.unsqueeze(-1),
    ],
)
def test_the_reference_makes_values_in_order_for_the_torch_calls_behind_it(between):
    """As kernels do: a copy that put them in order was dropped behind a kernel."""

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.GroupNorm(1, 6)

        def forward(self, x):
            return self.norm(between(torch.einsum("bij->bji", x))[:, :6])

    model = Normed().eval()
    fast = compile(model, torch.randn(2, 5, 6), precision="int8")
    check(fast, model, torch.randn(2, 5, 6))


def test_types_that_a_module_mixes_stay_mixed_without_the_extension(monkeypatch):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("wide", torch.randn(4, dtype=torch.float64))

        def forward(self, x):
            return self.layer(x.float()).double() + self.wide, x.half() * 2

    monkeypatch.setattr(compiling, "extension", lambda: None)
    model = Mixed().eval()
    check(
        compile(model, torch.randn(2, 4, dtype=torch.float64)),
        model,
        torch.randn(2, 4, dtype=torch.float64),
    )
