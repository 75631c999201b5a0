"""Networks that were trained with quantized inputs run compiled as their modules do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tersify
from tersify import Recipe, Rule
from tersify.methods import TernaryWeightNetwork
from tersify.methods.inputs import SignInputs, TernaryInputs, TokenInputs, UniformInputs
from tersify.recipe import InputRule
from tersify.runtime.ops import Conv, ConvKernel, Levels, Linear, LinearKernel
from tersify.tensor.model import load_state

pytest.importorskip("tersify._runtime")

METHODS = {
    "8 bits learned": UniformInputs(),
    "8 bits observed": UniformInputs(range="observed"),
    "4 bits": UniformInputs(bits=4),
    "2 bits": UniformInputs(bits=2, signed="yes"),
    "ternary": TernaryInputs(),
    "sign": SignInputs(),
    "sign, scaled": SignInputs(scaled=True),
}
FEW = ("2 bits", "ternary", "sign", "sign, scaled")


def linear_net():
    return nn.Sequential(
        nn.Linear(130, 200), nn.BatchNorm1d(200), nn.Hardtanh(), nn.Linear(200, 150)
    )


def conv_net():
    """Without a residual: what a convolution makes goes to the next rounding alone."""
    return nn.Sequential(
        nn.Conv2d(6, 70, 3, padding=1, bias=False),
        nn.BatchNorm2d(70),
        nn.Hardtanh(),
        nn.Conv2d(70, 40, 3, stride=2, padding=1),
        nn.BatchNorm2d(40),
        nn.Hardtanh(),
        nn.Conv2d(40, 40, 1),
    )


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(24, 24, 3, padding=1, bias=False)
        self.second = nn.Conv2d(24, 24, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(24), nn.BatchNorm2d(24)])

    def forward(self, x):
        y = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(y)) + x).relu()


NETS = {
    "linear": (linear_net, (9, 130)),
    "conv": (conv_net, (3, 6, 9, 10)),
}


def trained(make, method, x, weights=None):
    """Attached, packed and put into a fresh network, as a file does it."""
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        model(x)  # BatchNorm's statistics
    recipe = Recipe(
        rules=[Rule(methods=[weights or TernaryWeightNetwork()])],
        inputs=[InputRule(methods=[method])],
    )
    session = tersify.attach(model.eval(), recipe, calibration=[(x, None)])
    return load_state(session.pack(), make().eval())


def ops_of(compiled):
    return [node.op for node in compiled.plan.nodes]


def same(made, wanted):
    return float((made - wanted).abs().max() / wanted.abs().max()) <= 2e-5


def agree(made, wanted):
    """The same but where a number between two levels fell on the other side, which the
    order of torch's own sums decides as well.
    """
    return same(made, wanted) or float((made - wanted).norm() / wanted.norm()) <= 2e-2


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("name", METHODS)
def test_a_network_with_trained_inputs_equals_its_module(net, name, kernels_win):
    make, shape = NETS[net]
    torch.manual_seed(1)
    x = torch.randn(shape)
    model = trained(make, METHODS[name], x)
    fast = tersify.compile(model, x, threads=1)
    with torch.no_grad():
        assert agree(fast(x), model(x))


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("name", FEW)
def test_few_levels_and_signs_are_products_of_bits(net, name, kernels_win):
    make, shape = NETS[net]
    torch.manual_seed(1)
    x = torch.randn(shape)
    fast = tersify.compile(trained(make, METHODS[name], x), x, threads=1)
    layers = [op for op in ops_of(fast) if isinstance(op, (Conv, Linear))]
    # The average of magnitudes that scales signs is a convolution of one filter.
    learned = [op for op in layers if op.weight.shape[0] > 1]
    assert learned
    assert {op.kernel for op in learned} <= {ConvKernel.BITS, LinearKernel.BITS}


def test_trained_bytes_stay_bytes_from_one_convolution_to_the_next(costs):
    costs(
        conv_dense=1e6, conv_sign=1e6, **{"conv_dense-lanes": 1e6, "conv_two-bit": 1e3}
    )
    torch.manual_seed(1)
    x = torch.randn(3, 6, 9, 10)
    model = trained(conv_net, METHODS["8 bits learned"], x)
    fast = tersify.compile(model, x, threads=1)
    kernels = [op.kernel for op in ops_of(fast) if isinstance(op, Conv)]
    # The last one's numbers leave the network, so they are floats.
    assert kernels == [ConvKernel.LISTS_I8, ConvKernel.LISTS_I8, ConvKernel.CODES_I8]
    assert not any(isinstance(op, Levels) for op in ops_of(fast))
    with torch.no_grad():
        wanted, made = model(x), fast(x)
    assert agree(made, wanted)


def test_trained_bytes_of_a_linear_layer_are_products_of_whole_numbers(costs):
    costs(
        vector_dense=1e6,
        rows_dense=1e6,
        vector_sign=1e6,
        rows_sign=1e6,
        vector_int8=0.1,
    )
    torch.manual_seed(1)
    x = torch.randn(2, 130)
    model = trained(linear_net, METHODS["8 bits learned"], x)
    fast = tersify.compile(model, x, threads=1)
    kernels = [op.kernel for op in ops_of(fast) if isinstance(op, Linear)]
    assert kernels == [LinearKernel.LEVELS_I8, LinearKernel.LEVELS_I8]
    with torch.no_grad():
        assert same(fast(x), model(x))


@pytest.mark.parametrize("name", ["8 bits learned", "ternary"])
def test_a_residual_is_not_rounded_with_what_a_layer_reads(name, kernels_win):
    torch.manual_seed(1)
    x = torch.randn(2, 24, 8, 8)
    model = trained(lambda: nn.Sequential(Block(), Block()), METHODS[name], x)
    fast = tersify.compile(model, x, threads=1)
    with torch.no_grad():
        wanted, made = model(x), fast(x)
    assert agree(made, wanted)


def test_tokens_with_scales_of_their_own_stay_right(kernels_win):
    torch.manual_seed(1)
    x = torch.randn(3, 5, 130) * torch.logspace(-3, 3, 5)[:, None]
    make = lambda: nn.Sequential(nn.Linear(130, 200), nn.GELU(), nn.Linear(200, 7))  # noqa: E731
    model = trained(make, TokenInputs(), x)
    with torch.no_grad():
        assert same(tersify.compile(model, x, threads=1)(x), model(x))


@pytest.mark.parametrize("precision", ["fp16", "int8", "auto"])
def test_no_precision_rounds_a_second_time_what_training_rounded(precision, isa):
    if isa not in ("portable", "avx512vnni"):
        return
    torch.manual_seed(1)
    x = torch.randn(3, 6, 9, 10)
    model = trained(conv_net, METHODS["ternary"], x)
    more = {} if precision == "fp16" else {"calibration": [x]}
    fast = tersify.compile(model, x, threads=1, precision=precision, **more)
    with torch.no_grad():
        assert same(fast(x), model(x))


def test_a_plan_for_other_machines_says_that_it_has_no_trained_inputs(tmp_path):
    from tersify.runtime.portable import lowered

    torch.manual_seed(1)
    x = torch.randn(2, 130)
    model = trained(linear_net, METHODS["ternary"], x)
    with pytest.raises(ValueError, match="would be a call of torch"):
        lowered(model, x, dict(model.state_dict()))
