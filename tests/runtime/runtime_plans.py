"""Plans of one operation, made by hand: no export, so a test may try many."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from hypothesis import strategies as st
from torch import Tensor

from tersify.runtime.compiled import CompiledModule, build
from tersify.runtime.plan import Finish, Input, Node, Plan
from tersify.runtime.reference import run_reference
from tersify.runtime.weights import Weight

TOLERANCE = 1e-5  # of the largest output, for float32 sums in any order


def _pairs(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(low, high))


# (kernel, stride, padding, dilation), each h and w
KINDS = ("sign", "table", "float")
WINDOWS = st.tuples(_pairs(1, 4), _pairs(1, 3), _pairs(0, 3), _pairs(1, 2)).map(lambda parts: sum(parts, ()))
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
    """For tests that draw the instruction set, which a fixture cannot give anew for every example."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERSIFY_ISA", isa)
        yield


def random_weight(shape: tuple[int, ...], kind: str, zeros: float, seed: int = 0) -> Weight:
    g = torch.Generator().manual_seed(seed)
    kept = (torch.rand(shape, generator=g) >= zeros).float()
    if kind == "sign":
        return Weight(kind="sign", values=torch.randn(shape, generator=g).sign() * kept)
    if kind == "table":
        table = torch.tensor([-1.5, -0.25, 0.125, 0.75, 2.0])
        return Weight(kind="table", values=table[torch.randint(0, 5, shape, generator=g)] * kept, table=table)
    return Weight(kind="float", values=torch.randn(shape, generator=g) * kept)


def _scaled_signs(rows: int, width: int) -> Weight:
    signs = random_weight((rows, width), "sign", 0.3)
    return Weight(kind="sign", values=signs.values, row_scale=torch.linspace(0.5, 2.0, rows))


def _many_levels(rows: int, width: int) -> Weight:
    table = torch.arange(1, 201) / 64
    return Weight(kind="table", values=table[torch.arange(rows * width).reshape(rows, width) % 200], table=table)


KIND_WEIGHTS = {
    "sign": lambda rows, width: random_weight((rows, width), "sign", 0.3),
    "sign with a scale a row": _scaled_signs,
    "table": lambda rows, width: random_weight((rows, width), "table", 0.3),
    "table of 200 levels": _many_levels,
    "float": lambda rows, width: random_weight((rows, width), "float", 0.3),
}


def plan_of(*nodes: Node, inputs: dict[str, tuple[int, ...]], outputs: tuple[str, ...] | None = None) -> Plan:
    return Plan(
        inputs=tuple(Input(name=name, shape=shape) for name, shape in inputs.items()),
        nodes=nodes,
        outputs=outputs or (nodes[-1].name,),
        constants={},
    )


def compiled(plan: Plan, threads: int = 1) -> CompiledModule:
    return build(plan, pytree.tree_structure(tuple(plan.outputs)), threads=threads)


def conv_shape(rows: int, size: tuple[int, int], window: tuple[int, ...]) -> tuple[int, int, int]:
    kh, kw, sh, sw, ph, pw, dh, dw = window
    return (rows, (size[0] + 2 * ph - dh * (kh - 1) - 1) // sh + 1, (size[1] + 2 * pw - dw * (kw - 1) - 1) // sw + 1)


def relu() -> Finish:
    return Finish(low=0.0, high=math.inf)


def assert_close(plan: Plan, inputs: list[Tensor], *, threads: int = 1, module: Any = None) -> None:
    """The kernels agree with the reference in float64."""
    exact = run_reference(plan, [x.double() for x in inputs])
    given = (module or compiled(plan, threads))(*inputs)
    for wanted, got in zip(exact, given, strict=True):
        assert got.shape == wanted.shape
        error = (got.double() - wanted).abs().max() if got.numel() else torch.zeros(())
        assert error <= TOLERANCE * max(1.0, float(wanted.abs().max())), f"off by {float(error):.3g}"


def whole_steps(*shape: int, seed: int = 0) -> Tensor:
    """Vectors that 127 steps of their largest number express exactly."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(-127, 128, shape, generator=g).float()
    x[..., seed % shape[-1]] = 127.0
    return x / 32


def byte_plan(
    rows: int,
    features: int,
    *,
    kind: str = "sign",
    zeros: float = 0.3,
    inner: tuple[int, ...] = (),
    seed: int = 0,
    **more: Any,
) -> Plan:
    """A linear layer on 8-bit activations."""
    weight = random_weight((rows, features), kind, zeros, seed)
    node = Node(
        name="y",
        kind="linear",
        inputs=("x",),
        shape=(*inner, rows),
        weight=weight if kind == "sign" else weight.in_steps(),
        options={"int8": True},
        **more,
    )
    return plan_of(node, inputs={"x": (*inner, features)})


def permutes_bytes(isa: str) -> bool:
    """Whether kernels of this instruction set may use VBMI here."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return isa in ("avx512vnni", "avx512fp16", "amx") and "avx512vbmi" in flags
