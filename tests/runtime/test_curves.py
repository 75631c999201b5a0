"""Powers, logarithms, roots and means of any axes agree with torch on every instruction
set, and what is not finite is torch's.
"""

from __future__ import annotations

import math

import pytest
import torch
from runtime_plans import assert_close, floats, plan_of, run
from torch import Tensor, nn

from tersify.lab.networks.speech import HEADS, SpeechMlp
from tersify.runtime import compile
from tersify.runtime.ops import AverageOfAxes, Curve, CurveKind
from tersify.runtime.plan import Node, Plan

runtime = pytest.importorskip("tersify._runtime")

TORCH = {
    CurveKind.EXP: torch.exp,
    CurveKind.LOG: torch.log,
    CurveKind.LOG_SIGMOID: nn.functional.logsigmoid,
    CurveKind.ROOT: torch.sqrt,
}
# where torch's own result is finite
ENDS = {
    CurveKind.EXP: (-120.0, 88.7),
    CurveKind.LOG: (1e-45, 3e38),
    CurveKind.LOG_SIGMOID: (-3e38, 3e38),
    CurveKind.ROOT: (0.0, 3e38),
}
SHAPE = (2, 3, 501)


def plan_with(kind: CurveKind) -> Plan:
    node = Node(name="y", op=Curve(curve=kind), inputs=("x",), value=floats(*SHAPE))
    return plan_of(node, inputs={"x": SHAPE})


@pytest.mark.parametrize("kind", list(CurveKind))
def test_a_curve_keeps_its_digits_near_and_far(isa: str, kind: CurveKind) -> None:
    count = math.prod(SHAPE)
    low, high = ENDS[kind]
    for spread in (1e-6, 1e-3, 1.0, 20.0, 80.0, 1e38):
        x = torch.linspace(-spread, spread, count).clamp(low, high)
        wanted = TORCH[kind](x.double()).reshape(SHAPE)
        (made,) = run(plan_with(kind), [x.reshape(SHAPE)])
        # relative to each number, but for what is too small for an exponent
        gaps = (made.double() - wanted).abs() - 1e-37
        assert (gaps <= 1e-6 * wanted.abs() + 1e-7 * (kind is CurveKind.LOG)).all()


@pytest.mark.parametrize(
    ("kind", "odd"),
    [
        (CurveKind.LOG, 0.0),
        (CurveKind.LOG, -0.0),
        (CurveKind.LOG, -2.0),
        (CurveKind.ROOT, -1e-30),
        (CurveKind.EXP, 89.0),
        (CurveKind.EXP, 1e30),
    ],
)
def test_an_engine_says_that_a_curve_made_what_is_not_finite(
    isa: str, kind: CurveKind, odd: float
) -> None:
    engine = runtime.Engine(runtime.Workspace(isa, 2))
    value = engine.input(5, (7, 1, 1))
    engine.outputs([engine.curve(value, getattr(runtime.Curve, kind.name))])
    x, out = torch.ones(5, 7), torch.empty(5, 7)
    buffers = [(x.data_ptr(), 35)], [(out.data_ptr(), 35)]
    assert engine.run(*buffers)
    x[3, 6] = odd
    assert not engine.run(*buffers)
    torch.testing.assert_close(out, TORCH[kind](x), equal_nan=True)
    x[3, 6] = 1.0
    assert engine.run(*buffers)


@pytest.mark.usefixtures("kernels_win")
@pytest.mark.parametrize("curve", TORCH.values())
@pytest.mark.parametrize("odd", [0.0, -1.0, 200.0, math.inf, -math.inf, math.nan])
def test_a_layer_behind_a_curve_sees_what_torch_would_show_it(curve, odd) -> None:
    class Behind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 32)
            # lists skip zeros, and zero times infinity is NaN
            self.layer.weight.data[:, ::2] = 0

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(curve(x))

    torch.manual_seed(0)
    model, x = Behind().eval(), torch.rand(4, 64) + 0.1
    fast = compile(model, x, strict=True)
    x[1, 2] = odd
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), equal_nan=True)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((3, 8, 129), (1,)),
        ((2, 5), (1,)),
        ((2, 3, 4, 5), (3,)),
        ((2, 3, 4, 5), (1, 3)),
        ((2, 3, 4, 5), (1, 2, 3)),
        ((1, 2, 3, 4, 5), (2, 3)),
    ],
)
def test_means_of_any_axes_of_an_item(isa: str, shape, axes) -> None:
    left = tuple(1 if i in axes else size for i, size in enumerate(shape))
    op = AverageOfAxes(source_shape=shape, axes=axes)
    node = Node(name="y", op=op, inputs=("x",), value=floats(*left))
    assert_close(plan_of(node, inputs={"x": shape}), threads=2)


def quotient_by_a_constant(x: Tensor) -> Tensor:
    return x / (torch.arange(5.0) + 0.5)


def quotient_by_channels(x: Tensor) -> Tensor:
    return x / (torch.arange(4.0) - 1.5)[:, None]


def square(x: Tensor) -> Tensor:
    return (x + 1) ** 2


@pytest.mark.usefixtures("kernels_win")
@pytest.mark.parametrize("make", [quotient_by_a_constant, quotient_by_channels, square])
def test_quotients_and_squares_have_kernels(make) -> None:
    class Made(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return make(x)

    x = torch.randn(3, 4, 5)
    fast = compile(Made(), x, strict=True)
    assert not any(node.op.in_torch for node in fast.plan.nodes)
    torch.testing.assert_close(fast(x), make(x), rtol=1e-6, atol=1e-6)


def test_a_quotient_by_zero_stays_torchs() -> None:
    class Halves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / torch.tensor([1.0, 0.0, 2.0])

    x = torch.randn(2, 3)
    assert torch.equal(compile(Halves(), x)(x), Halves()(x))


@pytest.mark.usefixtures("kernels_win")
@pytest.mark.parametrize("head", HEADS)
def test_the_speech_network_is_kernels_alone(head: str) -> None:
    torch.manual_seed(0)
    model = SpeechMlp(head).eval()
    magnitudes = torch.rand(5, 8, 129) * 3
    model.standardise_(magnitudes.flatten(0, 1))
    fast = compile(model, magnitudes, strict=True)
    assert not any(node.op.in_torch for node in fast.plan.nodes)
    magnitudes[2] = 0
    with torch.no_grad():
        wanted = model(magnitudes)
    assert (fast(magnitudes) - wanted).abs().max() <= 2e-5 * wanted.abs().max()
