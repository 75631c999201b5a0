"""16-bit floats: the kernels add what the rounded reference adds, in short runs, and round what they write."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_plans import ANY_CONVOLUTION, KINDS, compiled, conv_shape, plan_of, random_weight, running_on
from torch import Tensor, nn

from tersify.runtime import compile, run_reference
from tersify.runtime.halves import with_halves
from tersify.runtime.plan import Finish, Node, Plan, Pooled
from tersify.runtime.reference import as_halves

extension = pytest.importorskip("tersify._runtime")
ISAS = extension.isas()
ONE, THREE = (1, 1, 1, 1, 0, 0, 1, 1), (3, 3, 1, 1, 1, 1, 1, 1)
UNIT = 2.0**-11  # what one rounding may change, of a number
RUN = 64  # sums in a row that are rounded, before they move on to float


def half_plan(channels, rows, size, window=THREE, *, kind="sign", zeros=0.9, groups=1, exact=False, **more) -> Plan:
    weight = random_weight((rows, channels // groups, window[0], window[1]), kind, zeros)
    if exact and kind == "float":
        weight = replace(weight, values=(weight.values * 8).round().clamp(-8, 8) / 8)
    shape = conv_shape(rows, size, window)
    node = Node(
        name="y",
        kind="conv",
        inputs=("x",),
        shape=more.pop("shape", shape),
        weight=weight,
        options={"window": window, "groups": groups},
        **more,
    )
    inputs = {"x": (channels, *size)}
    if node.residual is not None:
        inputs["r"] = shape
    return with_halves(plan_of(node, inputs=inputs))


def of_ones(plan: Plan) -> Plan:
    node = plan.nodes[0]
    assert node.weight is not None
    weight = replace(node.weight, values=torch.ones_like(node.weight.values))
    return replace(plan, nodes=(replace(node, weight=weight),))


def few_steps(n: int, plan: Plan) -> list[Tensor]:
    """Whole numbers so small that no run of sums is rounded: what is left is the rounding of the result."""
    g = torch.Generator().manual_seed(1)
    return [torch.randint(-3, 4, (n, *i.shape), generator=g).float() for i in plan.inputs]


def check_exact(plan: Plan, inputs: list[Tensor], threads: int = 1) -> None:
    wanted = run_reference(plan, [x.double() for x in inputs])[0]
    got = compiled(plan, threads)(*inputs)[0].double()
    assert got.shape == wanted.shape
    # Twice: float and double may differ about which of two halves is nearer.
    assert ((got - wanted).abs() <= 2 * UNIT * wanted.abs() + 1e-6).all()


def check_bounded(plan: Plan, inputs: list[Tensor], threads: int = 1) -> None:
    """The stated bound, 64 roundings of what the absolute values would sum to; and what random numbers really do."""
    node = plan.nodes[0]
    assert node.weight is not None
    sizes = replace(node, weight=replace(node.weight, values=node.weight.values.abs()), finish=Finish())
    most = run_reference(replace(plan, nodes=(sizes,)), [x.double().abs() for x in inputs])[0]
    wanted = run_reference(plan, [x.double() for x in inputs])[0]
    error = (compiled(plan, threads)(*inputs)[0].double() - wanted).abs()
    assert (error <= RUN * UNIT * most + 2 * UNIT * wanted.abs() + 1e-6).all()
    assert float(error.max()) <= 4e-3 * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.9, 1.0])
def test_sums_of_every_kind_and_share_of_zeros_are_exact_where_halves_can_tell_them(isa, kind, zeros):
    plan = half_plan(40, 24, (16, 16), kind=kind, zeros=zeros, exact=True)
    for n in (1, 3):
        check_exact(plan, few_steps(n, plan))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [20, 200])
def test_random_numbers_stay_within_the_stated_bound(isa, kind, channels):
    plan = half_plan(channels, 24, (12, 12), kind=kind, zeros=0.5)
    check_bounded(plan, [torch.randn(3, channels, 12, 12)])


def test_long_rows_keep_what_halves_alone_would_lose(isa):
    """2,304 ones: a sum in 16-bit floats stops at 2,048."""
    plan = of_ones(half_plan(256, 4, (6, 6)))
    got = compiled(plan)(torch.ones(2, 256, 6, 6))[0]
    assert got[:, :, 2, 2].tolist() == [[2304.0] * 4] * 2


@pytest.mark.parametrize("act", ["relu", "clamp", "gelu", "silu"])
def test_the_finish_is_computed_in_float_and_stored_as_halves(isa, act):
    g = torch.Generator().manual_seed(3)
    constants = [torch.randn(10, generator=g, dtype=torch.float64) for _ in range(4)]
    ends = {"relu": {"low": 0.0}, "clamp": {"low": -0.5, "high": 0.25}}.get(act, {"act": act})
    finish = Finish(scale=constants[0], shift=constants[1], scale2=constants[2], shift2=constants[3], **ends)
    plan = half_plan(6, 10, (9, 9), zeros=0.7, residual="r", finish=finish)
    inputs = few_steps(3, plan)
    wanted = run_reference(plan, [x.double() for x in inputs])[0]
    got = compiled(plan, 2)(*inputs)[0]
    assert torch.equal(got, as_halves(got))
    assert ((got.double() - wanted).abs() <= 2 * UNIT * wanted.abs() + 1e-4).all()


@pytest.mark.parametrize("size", [(8, 8), (7, 5), (16, 16)])
def test_means_stay_floats(isa, size):
    plan = half_plan(6, 10, size, zeros=0.5, shape=(10,), pooled=Pooled(before=conv_shape(10, size, THREE)))
    inputs = few_steps(3, plan)
    wanted = run_reference(plan, [x.double() for x in inputs])[0]
    got = compiled(plan)(*inputs)[0].double()
    assert (got - wanted).abs().max() <= 1e-5 * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize("size", [(8, 8), (12, 10), (32, 32)])
def test_maxima_of_windows(isa, size):
    window = (2, 2, 2, 2, 0, 0, 1, 1)
    before = conv_shape(10, size, THREE)
    pooled = Pooled(before=before, window=window)
    plan = half_plan(6, 10, size, zeros=0.5, shape=conv_shape(10, size, window), pooled=pooled)
    check_exact(plan, few_steps(3, plan))


@given(**ANY_CONVOLUTION, isa=st.sampled_from(ISAS))
@settings(max_examples=60, deadline=None)
def test_convolution_of_any_shape(n, channels, rows, size, window, kind, zeros, isa, threads):
    if min(conv_shape(rows, size, window)) < 1:
        return
    plan = half_plan(channels, rows, size, window, kind=kind, zeros=zeros, exact=True)
    with running_on(isa):
        check_exact(plan, few_steps(n, plan), threads)


def test_every_half_passes_through_unchanged(isa):
    """All 65,536 of them; what is no number stays none."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    numbers = bits.view(torch.float16).float()
    plan = of_ones(half_plan(1, 1, (256, 256), ONE))
    got = compiled(plan)(numbers.reshape(1, 1, 256, 256))[0].flatten()
    assert torch.equal(got[~numbers.isnan()], numbers[~numbers.isnan()])
    assert torch.equal(got.isnan(), numbers.isnan())


def test_floats_round_to_the_nearest_half_and_ties_to_even(isa):
    g = torch.Generator().manual_seed(2)
    magnitudes = torch.exp2(torch.empty(60, 64).uniform_(-27, 17, generator=g))
    ties = torch.tensor([1 + UNIT, 1 + 3 * UNIT, 65519.9, 65520.0, 2.0**-25, 3 * 2.0**-25, 0.0, -0.0])
    x = torch.cat([magnitudes, -magnitudes, ties.repeat(8, 8)]).reshape(1, 1, 128, 64)
    plan = of_ones(half_plan(1, 1, (128, 64), ONE))
    assert torch.equal(compiled(plan)(x)[0], as_halves(x))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    net[3].weight.data = 0.05 * net[3].weight.data.sign() * (torch.rand_like(net[3].weight) < 0.3)
    return net.eval()


def test_a_compiled_network_tells_fp16_and_keeps_three_digits(isa):
    net, x = network(), torch.randn(5, 3, 16, 16)
    fast = compile(net, x, precision="fp16", threads=2)
    assert fast.plan.describe().count("fp16 activations") == 2
    assert any("sparse signs, fp16" in op.kernel for op in fast.profile(x, repeats=1))
    with torch.no_grad():
        wanted = net(x)
    assert (fast(x) - wanted).abs().max() < 2e-3 * wanted.abs().max()
    assert not torch.equal(fast(x), compile(net, x, threads=2)(x))


def test_without_the_instructions_it_warns_and_stays_exact(monkeypatch):
    monkeypatch.delenv("TERSIFY_ISA", raising=False)
    if extension.adds_fp16(ISAS[-1]):
        pytest.skip("this CPU has AVX512-FP16")
    net, x = network(), torch.randn(2, 3, 16, 16)
    with pytest.warns(RuntimeWarning, match="no AVX512-FP16"):
        fast = compile(net, x, precision="fp16")
    assert "fp16" not in fast.plan.describe()
    with torch.no_grad():
        assert torch.allclose(fast(x), net(x), atol=1e-6)


def test_weights_beyond_the_range_of_halves_stay_in_float():
    weight = random_weight((4, 3, 3, 3), "float", 0.0)
    node = Node(
        name="y", kind="conv", inputs=("x",), shape=(4, 8, 8), options={"window": THREE, "groups": 1},
        weight=replace(weight, values=weight.values * 1e5),
    )  # fmt: skip
    plan = with_halves(plan_of(node, inputs={"x": (3, 8, 8)}))
    assert "fp16" not in plan.describe()


def test_results_do_not_depend_on_the_number_of_threads(isa):
    plan = half_plan(64, 64, (16, 16), zeros=0.5)
    x = torch.randn(1, 64, 16, 16)
    results = [compiled(plan, threads)(x)[0] for threads in (1, 2, 3)]
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_an_operation_without_fp16_kernels_reads_the_rounded_numbers(isa):
    conv = half_plan(4, 6, (10, 10), zeros=0.5).nodes[0]
    both = Node(name="z", kind="pointwise", inputs=("y",), residual="r", multiply=True, shape=(6, 10, 10))
    plan = plan_of(conv, both, inputs={"x": (4, 10, 10), "r": (6, 10, 10)})
    inputs = few_steps(3, plan)
    inputs[1] = torch.randn(3, 6, 10, 10)
    wanted = run_reference(plan, [x.double() for x in inputs])[0]
    assert (compiled(plan)(*inputs)[0] - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_nan_in_an_image_stays_in_that_image(isa):
    plan = half_plan(4, 6, (8, 8), zeros=0.0, finish=Finish(low=0.0))
    module = compiled(plan)
    x = torch.randn(3, 4, 8, 8)
    clean = module(x)[0]
    x[1] = math.nan
    dirty = module(x)[0]
    assert dirty[1].isnan().all()
    assert torch.equal(dirty[[0, 2]], clean[[0, 2]])
