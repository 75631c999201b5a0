"""16-bit floats: the kernels add what the rounded reference adds, in short runs, and
round what they write.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_plans import (
    ANY_CONVOLUTION,
    KINDS,
    ONE,
    RELU,
    assert_in_torch_where_not_finite,
    conv_plan,
    conv_shape,
    floats,
    plan_of,
    run,
    running_on,
    some_epilogue,
    weight_values,
)
from torch import Tensor, nn

from tersify.runtime import compile, run_reference
from tersify.runtime.epilogue import Epilogue
from tersify.runtime.ops import Conv, Elementwise
from tersify.runtime.ops.rounding import as_fp16
from tersify.runtime.passes import with_fp16
from tersify.runtime.plan import Node, Plan
from tersify.runtime.weights import WeightKind

extension = pytest.importorskip("tersify._runtime")
ISAS = extension.isas()
UNIT = 2.0**-11  # what one rounding may change, of a number
RUN = 64  # sums in a row that are rounded, before they move on to float


def fp16_plan(*sizes, exact=False, **more) -> Plan:
    plan = conv_plan(*sizes, **more)
    if exact and more.get("kind") is WeightKind.FLOAT:
        values = weight_values(plan)
        values.copy_((values * 8).round().clamp(-8, 8) / 8)
    return with_fp16(plan)


def of_ones(plan: Plan) -> Plan:
    weight_values(plan).fill_(1.0)
    return plan


def few_steps(plan: Plan) -> list[Tensor]:
    """Whole numbers so small that no run of sums is rounded: what is left is the
    rounding of the result.
    """
    g = torch.Generator().manual_seed(1)
    return [
        torch.randint(-3, 4, value.shape, generator=g).float()
        for value in plan.inputs.values()
    ]


def check_exact(plan: Plan, threads: int = 1) -> None:
    inputs = few_steps(plan)
    wanted = run_reference(plan, [x.double() for x in inputs])[0]
    got = run(plan, inputs, threads)[0].double()
    assert got.shape == wanted.shape
    # Twice: float and double may differ about which of two halves is nearer.
    assert ((got - wanted).abs() <= 2 * UNIT * wanted.abs() + 1e-6).all()


def check_bounded(plan: Plan, inputs: list[Tensor], threads: int = 1) -> None:
    """The stated bound, 64 roundings of what the absolute values would sum to; and what
    random numbers really do.
    """
    node = plan.nodes[0]
    op = node.op
    assert isinstance(op, Conv)
    weight = replace(op.weight, values=op.weight.values.abs())
    sizes = replace(node, op=replace(op, weight=weight, epilogue=Epilogue()))
    most = run_reference(
        replace(plan, nodes=(sizes,)), [x.double().abs() for x in inputs]
    )[0]
    wanted = run_reference(plan, [x.double() for x in inputs])[0]
    error = (run(plan, inputs, threads)[0].double() - wanted).abs()
    assert (error <= RUN * UNIT * most + 2 * UNIT * wanted.abs() + 1e-6).all()
    assert float(error.max()) <= 4e-3 * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.9, 1.0])
def test_sums_of_every_kind_and_share_of_zeros_are_exact_where_16_bits_can_tell_them(
    isa, kind, zeros
):
    for n in (1, 3):
        check_exact(fp16_plan(n, 40, 24, (16, 16), kind=kind, zeros=zeros, exact=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [20, 200])
def test_random_numbers_stay_within_the_stated_bound(isa, kind, channels):
    plan = fp16_plan(3, channels, 24, (12, 12), kind=kind, zeros=0.5)
    check_bounded(
        plan,
        [torch.randn(3, channels, 12, 12, generator=torch.Generator().manual_seed(0))],
    )


def test_long_rows_keep_what_16_bits_alone_would_lose(isa):
    """2,304 ones: a sum in 16-bit floats stops at 2,048."""
    plan = of_ones(fp16_plan(2, 256, 4, (6, 6)))
    got = run(plan, [torch.ones(2, 256, 6, 6)])[0]
    assert got[:, :, 2, 2].tolist() == [[2304.0] * 4] * 2


@pytest.mark.parametrize("act", ["relu", "clamp", "gelu", "silu"])
def test_the_epilogue_is_computed_in_float_and_stored_in_16_bits(isa, act):
    plan = fp16_plan(
        3, 6, 10, (9, 9), zeros=0.7, residual=True, epilogue=some_epilogue(act, 10)
    )
    inputs = few_steps(plan)
    wanted = run_reference(plan, [x.double() for x in inputs])[0]
    got = run(plan, inputs, 2)[0]
    assert torch.equal(got, as_fp16(got))
    assert ((got.double() - wanted).abs() <= 2 * UNIT * wanted.abs() + 1e-4).all()


@pytest.mark.parametrize("size", [(8, 8), (7, 5), (16, 16)])
def test_means_stay_floats(isa, size):
    plan = fp16_plan(3, 6, 10, size, zeros=0.5, mean=Epilogue())
    inputs = few_steps(plan)
    wanted = run_reference(plan, [x.double() for x in inputs])[0]
    assert (run(plan, inputs)[0].double() - wanted).abs().max() <= 1e-5 * max(
        1.0, float(wanted.abs().max())
    )


@pytest.mark.parametrize("size", [(8, 8), (12, 10), (32, 32)])
def test_maxima_of_windows(isa, size):
    check_exact(fp16_plan(3, 6, 10, size, zeros=0.5, pool=(2, 2)))


@given(**ANY_CONVOLUTION, isa=st.sampled_from(ISAS))
@settings(max_examples=60, deadline=None)
def test_convolution_of_any_shape(
    n, channels, rows, size, window, kind, zeros, isa, threads
):
    if min(conv_shape(rows, size, window)) < 1:
        return
    with running_on(isa):
        check_exact(
            fp16_plan(
                n, channels, rows, size, window, kind=kind, zeros=zeros, exact=True
            ),
            threads,
        )


def test_every_16_bit_float_passes_through_unchanged(isa):
    """All 65,536 of them; infinities and what is no number take the way through torch,
    and stay what they are.
    """
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    numbers = bits.view(torch.float16).float()
    plan = of_ones(fp16_plan(1, 1, 1, (256, 256), ONE))
    finite = torch.where(numbers.isfinite(), numbers, 0.0)
    assert torch.equal(run(plan, [finite.reshape(1, 1, 256, 256)])[0].flatten(), finite)
    got = run(plan, [numbers.reshape(1, 1, 256, 256)])[0].flatten()
    assert torch.equal(got[~numbers.isnan()], numbers[~numbers.isnan()])
    assert torch.equal(got.isnan(), numbers.isnan())


def test_floats_round_to_the_nearest_16_bit_float_and_ties_to_even(isa):
    g = torch.Generator().manual_seed(2)
    magnitudes = torch.exp2(torch.empty(60, 64).uniform_(-27, 17, generator=g))
    ties = torch.tensor(
        [1 + UNIT, 1 + 3 * UNIT, 65519.9, 65520.0, 2.0**-25, 3 * 2.0**-25, 0.0, -0.0]
    )
    x = torch.cat([magnitudes, -magnitudes, ties.repeat(8, 8)]).reshape(1, 1, 128, 64)
    assert torch.equal(
        run(of_ones(fp16_plan(1, 1, 1, (128, 64), ONE)), [x])[0], as_fp16(x)
    )


def network() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    net[3].weight.data = (
        0.05 * net[3].weight.data.sign() * (torch.rand_like(net[3].weight) < 0.3)
    )
    return net.eval()


@pytest.mark.usefixtures("kernels_win")
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


def test_weights_beyond_the_range_of_16_bits_stay_in_float():
    plan = conv_plan(1, 3, 4, (8, 8), kind=WeightKind.FLOAT, zeros=0.0)
    weight_values(plan).mul_(1e5)
    assert "fp16" not in with_fp16(plan).describe()


def test_results_do_not_depend_on_the_number_of_threads(isa):
    plan = fp16_plan(1, 64, 64, (16, 16), zeros=0.5)
    x = torch.randn(1, 64, 16, 16)
    results = [run(plan, [x], threads)[0] for threads in (1, 2, 3)]
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_an_operation_without_fp16_kernels_reads_the_rounded_numbers(isa):
    conv = fp16_plan(3, 4, 6, (10, 10), zeros=0.5).nodes[0]
    both = Node(
        name="z",
        op=Elementwise(multiply=True),
        inputs=("y", "r"),
        value=floats(3, 6, 10, 10),
    )
    plan = plan_of(conv, both, inputs={"x": (3, 4, 10, 10), "r": (3, 6, 10, 10)})
    inputs = few_steps(plan)
    inputs[1] = torch.randn(3, 6, 10, 10)
    wanted = run_reference(plan, [x.double() for x in inputs])[0]
    assert (run(plan, inputs)[0] - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_nan_in_an_image_stays_in_that_image(isa):
    plan = fp16_plan(3, 4, 6, (8, 8), zeros=0.0, epilogue=RELU)
    clean = few_steps(plan)[0]
    assert_in_torch_where_not_finite(plan, clean, math.nan, (1, 2, 3, 3))
