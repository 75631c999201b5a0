"""Plans of few operations, made by hand, so that a test may try many; and the networks
that run them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from tersify.runtime.capture import Value
from tersify.runtime.engine import Kernels
from tersify.runtime.epilogue import Activation, Epilogue
from tersify.runtime.extension import extension
from tersify.runtime.network import Network
from tersify.runtime.ops import Conv, ConvKernel, Linear, LinearKernel, Pooling, Window
from tersify.runtime.passes.quantize import (
    observed,
    quantized_values,
    with_int8_kernels,
)
from tersify.runtime.plan import Node, Plan, Quant
from tersify.runtime.reference import run_reference
from tersify.runtime.weights import Weight, WeightKind

TOLERANCE = 1e-5  # of the largest output, for float32 sums in any order
ONE, THREE = Window(1, 1), Window(3, 3, 1, 1, 1, 1)
KINDS = tuple(WeightKind)
RELU = Epilogue(low=0.0)


def _pairs(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(low, high))


# kernel, stride, padding and dilation, each h and w
WINDOWS = st.tuples(_pairs(1, 4), _pairs(1, 3), _pairs(0, 3), _pairs(1, 2)).map(
    lambda p: Window(*sum(p, ()))
)
ANY_CONVOLUTION = {
    "n": st.integers(1, 9),
    "channels": st.integers(1, 40),
    "rows": st.integers(1, 40),
    "size": st.tuples(st.integers(1, 21), st.integers(1, 21)),
    "window": WINDOWS,
    "kind": st.sampled_from(KINDS),
    "zeros": st.sampled_from([0.0, 0.6, 0.95]),
    "threads": st.integers(1, 3),
}


@contextmanager
def running_on(isa: str) -> Iterator[None]:
    """For tests that draw the instruction set, which a fixture cannot give anew for
    every example.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERSIFY_ISA", isa)
        yield


def permutes_bytes(isa: str) -> bool:
    """Whether kernels of this instruction set may use VBMI here."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return isa in ("avx512vnni", "avx512fp16", "amx") and "avx512vbmi" in flags


def random_weight(
    shape: tuple[int, ...], kind: WeightKind, zeros: float, seed: int = 0
) -> Weight:
    g = torch.Generator().manual_seed(seed)
    kept = (torch.rand(shape, generator=g) >= zeros).float()
    if kind is WeightKind.SIGN:
        return Weight(kind=kind, values=torch.randn(shape, generator=g).sign() * kept)
    if kind is WeightKind.TABLE:
        table = torch.tensor([-1.5, -0.25, 0.125, 0.75, 2.0])
        return Weight(
            kind=kind,
            values=table[torch.randint(0, 5, shape, generator=g)] * kept,
            table=table,
        )
    return Weight(kind=kind, values=torch.randn(shape, generator=g) * kept)


def _scaled_signs(rows: int, width: int) -> Weight:
    return replace(
        random_weight((rows, width), WeightKind.SIGN, 0.3),
        row_scale=torch.linspace(0.5, 2.0, rows),
    )


def _many_levels(rows: int, width: int) -> Weight:
    table = torch.arange(1, 201) / 64
    values = table[torch.arange(rows * width).reshape(rows, width) % 200]
    return Weight(kind=WeightKind.TABLE, values=values, table=table)


KIND_WEIGHTS = {
    "sign": lambda rows, width: random_weight((rows, width), WeightKind.SIGN, 0.3),
    "sign with a scale a row": _scaled_signs,
    "table": lambda rows, width: random_weight((rows, width), WeightKind.TABLE, 0.3),
    "table of 200 levels": _many_levels,
    "float": lambda rows, width: random_weight((rows, width), WeightKind.FLOAT, 0.3),
}


def floats(*shape: int) -> Value:
    return Value(shape=shape, dtype=torch.float32)


def plan_of(
    *nodes: Node,
    inputs: Mapping[str, tuple[int, ...]],
    outputs: tuple[str, ...] | None = None,
    quants: Mapping[str, Quant] | None = None,
) -> Plan:
    values = {name: floats(*shape) for name, shape in inputs.items()}
    return Plan(
        inputs=values,
        nodes=nodes,
        outputs=outputs or (nodes[-1].name,),
        quants=quants or {},
    )


def network_of(plan: Plan, threads: int = 1, *, in_order: bool = False) -> Network:
    """On the instruction set that TERSIFY_ISA names, or the best."""
    module = extension()
    assert module is not None
    return Network(plan, Kernels(module, threads, in_order=in_order))


def run(plan: Plan, inputs: Sequence[Tensor], threads: int = 1) -> list[Tensor]:
    return network_of(plan, threads).run(inputs)


def weight_values(plan: Plan) -> Tensor:
    """Of the first layer, to write on before a network is made of the plan."""
    op = plan.nodes[0].op
    assert isinstance(op, (Conv, Linear))
    return op.weight.values


def conv_shape(
    rows: int, size: tuple[int, int], window: Window
) -> tuple[int, int, int]:
    kh, kw, sh, sw, ph, pw, dh, dw = window
    return (
        rows,
        (size[0] + 2 * ph - dh * (kh - 1) - 1) // sh + 1,
        (size[1] + 2 * pw - dw * (kw - 1) - 1) // sw + 1,
    )


def conv_plan(
    n: int,
    channels: int,
    rows: int,
    size: tuple[int, int],
    window: Window = THREE,
    *,
    kind: WeightKind = WeightKind.SIGN,
    zeros: float = 0.9,
    groups: int = 1,
    seed: int = 0,
    residual: bool = False,
    pool: tuple[int, int] | None = None,
    mean: Epilogue | None = None,
    epilogue: Epilogue | None = None,
    kernel: ConvKernel = ConvKernel.LISTS_F32,
    quants: Mapping[str, Quant] | None = None,
) -> Plan:
    """x → y. `residual` adds r; `pool` takes maxima of such windows, `mean` the mean
    with that epilogue.
    """
    before = (n, *conv_shape(rows, size, window))
    shape, pooling = before, None
    if pool is not None:
        shape, pooling = (
            _pooled(before, pool),
            Pooling(before=before, window=Window(*pool, *pool)),
        )
    elif mean is not None:
        shape, pooling = before[:2], Pooling(before=before, epilogue=mean)
    op = Conv(
        weight=random_weight(
            (rows, channels // groups, window.kernel_h, window.kernel_w),
            kind,
            zeros,
            seed,
        ),
        window=window,
        groups=groups,
        epilogue=epilogue or Epilogue(),
        pooling=pooling,
        kernel=kernel,
    )
    node = Node(
        name="y", op=op, inputs=("x", "r") if residual else ("x",), value=floats(*shape)
    )
    shapes = {"x": (n, channels, *size)} | ({"r": before} if residual else {})
    return plan_of(node, inputs=shapes, quants=quants)


def _pooled(before: tuple[int, ...], pool: tuple[int, int]) -> tuple[int, ...]:
    return (*before[:2], before[2] // pool[0], before[3] // pool[1])


def linear_int8_plan(
    n: int,
    rows: int,
    features: int,
    *,
    kind: WeightKind = WeightKind.SIGN,
    zeros: float = 0.3,
    inner: tuple[int, ...] = (),
    seed: int = 0,
    epilogue: Epilogue | None = None,
    weight: Weight | None = None,
) -> Plan:
    """A linear layer on int8 activations."""
    weight = (
        random_weight((rows, features), kind, zeros, seed) if weight is None else weight
    )
    op = Linear(
        weight=weight.in_steps(),
        kernel=LinearKernel.I8,
        epilogue=epilogue or Epilogue(),
    )
    node = Node(name="y", op=op, inputs=("x",), value=floats(n, *inner, rows))
    return plan_of(node, inputs={"x": (n, *inner, features)})


def in_int8(plan: Plan, inputs: Sequence[Tensor], *, codes: bool = False) -> Plan:
    """Ternary convolutions on int8 activations, by lists or dense codes, their ranges
    those of the inputs, however faint some of them are.
    """
    if codes:
        node = plan.nodes[0]
        plan = replace(
            plan,
            nodes=(replace(node, op=replace(node.op, kernel=ConvKernel.CODES_I8)),),
        )
    marked = with_int8_kernels(plan)
    ranges = observed([(_in_floats(plan), inputs)], most_noise=math.inf)
    return replace(
        marked, quants={name: ranges[name] for name in quantized_values(marked)}
    )


def _in_floats(plan: Plan) -> Plan:
    return replace(
        plan,
        nodes=tuple(
            replace(node, op=replace(node.op, kernel=ConvKernel.LISTS_F32))
            for node in plan.nodes
        ),
    )


def some_epilogue(act: str, channels: int, seed: int = 3) -> Epilogue:
    """Both affine maps and an activation: relu, clamp, gelu or silu."""
    g = torch.Generator().manual_seed(seed)
    scale, shift, scale2, shift2 = (
        torch.randn(channels, generator=g, dtype=torch.float64) for _ in range(4)
    )
    return Epilogue(
        scale=scale, shift=shift, scale2=scale2, shift2=shift2, **activation(act)
    )


def activation(act: str) -> dict[str, Any]:
    ends = {"relu": {"low": 0.0}, "clamp": {"low": -0.5, "high": 0.25}}
    return ends[act] if act in ends else {"activation": Activation(act)}


def random_inputs(plan: Plan, seed: int = 1) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(value.shape, generator=g) for value in plan.inputs.values()]


def whole_steps(*shape: int, seed: int = 0) -> Tensor:
    """Vectors that 127 steps of their largest number express exactly."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(-127, 128, shape, generator=g).float()
    x[..., seed % shape[-1]] = 127.0
    return x / 32


def assert_close(
    plan: Plan, inputs: Sequence[Tensor] | None = None, *, threads: int = 1
) -> None:
    """The kernels agree with the reference in float64."""
    given = random_inputs(plan) if inputs is None else inputs
    exact = run_reference(plan, [x.double() for x in given])
    for wanted, got in zip(exact, run(plan, given, threads), strict=True):
        assert got.shape == wanted.shape
        error = (got.double() - wanted).abs().max()
        assert error <= TOLERANCE * max(1.0, float(wanted.abs().max())), (
            f"off by {float(error):.3g}"
        )


def assert_in_torch_where_not_finite(
    plan: Plan, clean: Tensor, bad: float, position: tuple[int, ...]
) -> None:
    """A number that is not finite gives what torch gives: it spoils its own item and no
    other.
    """
    dirty = clean.clone()
    dirty[position] = bad
    exact = run_reference(plan, [dirty])[0]
    network = network_of(plan)
    found, before = network.run([dirty])[0], network.run([clean])[0]
    assert torch.equal(found.isnan(), exact.isnan())
    assert found[position[0]].isnan().any() or math.isinf(bad)
    others = [i for i in range(len(clean)) if i != position[0]]
    assert torch.allclose(
        found[others], before[others], atol=TOLERANCE * float(before.abs().max())
    )
