"""What the kernels cost on this CPU: measured once, and kept in a cache file."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tersify.codec.atomic import replacing
from tersify.runtime.capture.values import Value
from tersify.runtime.engine import Kernels, Segment
from tersify.runtime.extension import chosen_isa
from tersify.runtime.ops import Conv, ConvKernel, Linear, LinearKernel, Window
from tersify.runtime.plan import Node, Quant
from tersify.runtime.weights import Weight, WeightKind

CACHE_VARIABLE = "TERSIFY_CACHE_DIR"
# the lists' costs are measured at these and read off in between
DENSITIES = (0.02, 0.1, 0.6)
# shape classes: windows; many rows of a matrix product; one
CONV, ROWS, VECTOR = "conv", "rows", "vector"
# dense in torch, or in the engine
DENSE, LANES, LISTS = "dense", "dense-lanes", ("sign", "table", "float")
# 8-bit activations: signs, signs with zeros, levels
INT8, TWO_BIT, FOUR_BIT = "int8", "two-bit", "four-bit"
# per number that changes its layout; per call outside the engine
EXCHANGE, LEAVING = "exchange", "leaving"
# per call of the engine, or of torch, that has next to nothing to do
ENTERING, CALL = "entering", "call"
_CHAIN = 3
CONV_KERNELS = {
    LANES: ConvKernel.DENSE_F32,
    INT8: ConvKernel.LISTS_I8,
    TWO_BIT: ConvKernel.CODES_I8,
    FOUR_BIT: ConvKernel.CODES_I8,
}
LINEAR_KERNELS = {
    LANES: LinearKernel.DENSE_F32,
    INT8: LinearKernel.I8,
    FOUR_BIT: LinearKernel.I8,
}


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Nanoseconds on one thread, by name.

    "class.kernel@density" is one multiplication with a weight that is not zero; a dense
    kernel multiplies with every weight, so its density is always 1. Linear layers with
    8-bit activations have both: few weights may be picked from lists. `EXCHANGE` and
    `LEAVING` are what a layer outside the engine pays besides.
    """

    nanoseconds: Mapping[str, float]

    def of(self, shape_class: str, kernel: str, density: float) -> float:
        """Nanoseconds a weight, zeros counted."""
        name = f"{shape_class}.{kernel}@"
        # Kernels that read every weight have one measurement, under the density 1.
        found = {
            d: self.nanoseconds[f"{name}{d:g}"]
            for d in DENSITIES
            if f"{name}{d:g}" in self.nanoseconds
        }
        if not found:
            return self.nanoseconds[f"{name}1"]
        # Shorter lists than were measured cost as much: with nothing to add,
        # activations are still moved.
        # A list's cost per weight, zeros counted, is its cost per non-zero times the
        # density. Above the largest measured density the cost per non-zero is taken as
        # constant, so at density 1 it is that cost itself.
        at, costs = (
            [*found, 1],
            [*(d * cost for d, cost in found.items()), found[max(found)]],
        )
        listed = float(np.interp(density, at, costs))
        # Some kernels have both forms, and the engine takes the faster one.
        return min(listed, self.nanoseconds.get(f"{name}1", listed))


def keys() -> list[str]:
    """Everything that a measurement holds."""
    # Lists of weights: their cost depends on how many weights are not zero.
    every = [_key(c, k, d) for c in (CONV, ROWS) for k in LISTS for d in DENSITIES]
    every += [_key(CONV, INT8, density) for density in DENSITIES]
    every += [_key(VECTOR, "float", density) for density in DENSITIES]
    # Kernels that read only the weights that are not zero gain nothing above these.
    for call in (VECTOR, ROWS):
        every += [_key(call, INT8, density) for density in DENSITIES[:2]]
    # The rest read every weight, zero or not, so one density tells all.
    full = {
        VECTOR: (*LISTS[:2], INT8, FOUR_BIT, DENSE, LANES),
        ROWS: (INT8, FOUR_BIT, DENSE, LANES),
        CONV: (DENSE, LANES, TWO_BIT, FOUR_BIT),
    }
    for call, kernels in full.items():
        every += [_key(call, kernel, 1) for kernel in kernels]
    return [*every, EXCHANGE, LEAVING, ENTERING, CALL]


def _key(call: str, kernel: str, density: float) -> str:
    return f"{call}.{kernel}@{density:g}"


def costs_of_this_cpu(module: ModuleType) -> Costs:
    """From the cache where it has them for this CPU, instruction set and build; else
    measured and written there.
    """
    path = cache_file(module)
    known = _read(path)
    if known is None:
        known = Costs(nanoseconds=measure(module))
        _write(path, known)
    return known


def cache_folder() -> Path:
    """Where measurements and built kernels are kept."""
    base = os.environ.get(CACHE_VARIABLE)
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) if base else Path(home) / "tersify"


def cache_file(module: ModuleType) -> Path:
    # Another CPU, instruction set, build, torch or list of keys makes another file, so
    # a stale measurement is never read.
    build = hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest()
    facts = "\n".join(
        (_cpu_model(), chosen_isa(module), build, torch.__version__, *keys())
    )
    return (
        cache_folder()
        / f"kernel-costs-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.json"
    )


def _cpu_model() -> str:
    try:
        # Every core repeats the same lines; the first one's suffice.
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    wanted = ("model name", "cpu family", "model", "stepping")
    return " ".join(
        line.split(":", 1)[1].strip()
        for line in lines[:30]
        if line.split("\t")[0].strip() in wanted
    )


def _read(path: Path) -> Costs | None:
    try:
        found = json.loads(path.read_text())
        costs = {key: float(found[key]) for key in keys()}
        # A cost of zero or NaN would win or lose every comparison.
        if not all(math.isfinite(cost) and cost > 0 for cost in costs.values()):
            raise ValueError("a cost is not a positive number")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        warnings.warn(
            f"the kernel costs in {path} cannot be read ({type(error).__name__}: {error}); measuring again. Remove "
            "the file if this comes back.",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
    return Costs(nanoseconds=costs)


def _write(path: Path, costs: Costs) -> None:
    """Whole or not at all; a cache that cannot be written is measured again next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(json.dumps(dict(costs.nanoseconds), indent=1).encode())
    except OSError:
        return


def measure(module: ModuleType) -> dict[str, float]:
    """One small layer a kernel family, on one thread; the best of a few calls, which
    noise only makes longer.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            return {key: _measured(module, key) for key in keys()}
    finally:
        torch.set_num_threads(threads)


def _measured(module: ModuleType, key: str) -> float:
    one = torch.ones(1, 1)
    if key == EXCHANGE:
        # A convolution alone brings its input into the kernel's layout and its output
        # back; in a chain it does neither. The difference is spread over both tensors,
        # which have equally many numbers. Noise can make it negative, hence the floor
        # of 5 %.
        x, nodes, quants = _convs("sign", 0.1)
        inside = _chain_seconds(module, x, nodes, quants) / (_CHAIN - 1)
        alone = _engine_seconds(module, x, nodes[:1], quants)
        return 1e9 * max(alone - inside, 0.05 * alone) / (2 * x.numel())
    if key == LEAVING:
        # Three times a tiny layer with its activation: leaving the engine also costs a
        # second call of it.
        return 1e9 * 3 * _best_seconds(lambda: F.linear(one, one).relu_())
    if key == CALL:
        return 1e9 * _best_seconds(lambda: F.linear(one, one))
    if key == ENTERING:
        # A 1×1 product computes nothing, so its time is the call's.
        linear = Linear(weight=Weight(kind=WeightKind.FLOAT, values=one))
        node = Node(name="y", op=linear, inputs=("x",), value=_floats(1, 1))
        return 1e9 * _engine_seconds(module, one, [node], {})
    shape_class, rest = key.split(".", 1)
    kernel, density = rest.split("@")
    if kernel == DENSE:
        x, values = _sizes(shape_class)
        # 256 = 16 · 16 output positions, each of which uses every weight once.
        windows = shape_class == CONV
        best = _best_seconds(
            lambda: F.conv2d(x, values, padding=1) if windows else F.linear(x, values)
        )
        return 1e9 * best / (values.numel() * (256 if windows else len(x)))
    if shape_class == CONV:
        x, nodes, quants = _convs(kernel, float(density))
        # The first convolution of the chain is taken off, so its weights do not count.
        weights = [
            node.op.weight.values for node in nodes[1:] if isinstance(node.op, Conv)
        ]
        counted = sum(
            w.numel() if density == "1" else int(w.count_nonzero()) for w in weights
        )
        return 1e9 * _chain_seconds(module, x, nodes, quants) / (256 * counted)
    x, values = _sizes(shape_class)
    # A key of density 1 names a kernel that reads every weight, so that its time does
    # not depend on the zeros; any density will do.
    weight = _weight(kernel, values, 0.6 if density == "1" else float(density))
    linear = Linear(weight=weight, kernel=LINEAR_KERNELS.get(kernel, LinearKernel.F32))
    node = Node(name="y", op=linear, inputs=("x",), value=_floats(len(x), len(values)))
    counted = values.numel() if density == "1" else int(weight.values.count_nonzero())
    return 1e9 * _engine_seconds(module, x, [node], {}) / (len(x) * counted)


def _sizes(shape_class: str) -> tuple[Tensor, Tensor]:
    """An input and a weight of the class."""
    # A fixed seed, so that two measurements time the same numbers. `rand` gives inputs
    # in [0, 1), which the 8-bit steps of `_convs` assume.
    g = torch.Generator().manual_seed(0)
    if shape_class == CONV:
        return torch.rand(1, 64, 16, 16, generator=g), torch.randn(
            64, 64, 3, 3, generator=g
        )
    return torch.rand(64 if shape_class == ROWS else 1, 512, generator=g), torch.randn(
        512, 512, generator=g
    )


def _weight(kernel: str, values: Tensor, density: float) -> Weight:
    kept = (
        torch.rand(values.shape, generator=torch.Generator().manual_seed(1)) < density
    )
    if kernel in ("float", LANES):
        return Weight(kind=WeightKind.FLOAT, values=values * kept)
    if kernel in ("table", FOUR_BIT):
        # Evenly spaced levels, so that they are whole steps of an int8 kernel as well.
        table = torch.tensor([-1.5, -0.5, 0.5, 1.5])
        return Weight(
            kind=WeightKind.TABLE,
            values=table[(values.abs() * 2).int().clamp(0, 3)] * kept,
            table=table,
        )
    return Weight(kind=WeightKind.SIGN, values=values.sign() * kept)


def _convs(kernel: str, density: float) -> tuple[Tensor, list[Node], dict[str, Quant]]:
    """Some convolutions in a row: all but the first find their input in the layout they
    like.
    """
    x, values = _sizes(CONV)
    names = ["x", *(f"y{i}" for i in range(_CHAIN))]
    chosen = CONV_KERNELS.get(kernel, ConvKernel.LISTS_F32)
    conv = Conv(
        weight=_weight(kernel, values, density),
        window=Window(3, 3, 1, 1, 1, 1, 1, 1),
        groups=1,
        kernel=chosen,
    )
    nodes = [
        Node(name=name, op=conv, inputs=(before,), value=_floats(*x.shape))
        for before, name in itertools.pairwise(names)
    ]
    # The step only sets the numbers, not the time, so one serves all values.
    int8 = chosen not in (ConvKernel.LISTS_F32, ConvKernel.DENSE_F32)
    return (
        x,
        nodes,
        {name: Quant(scale=1 / 255, low=0, high=255) for name in names} if int8 else {},
    )


def _floats(*shape: int) -> Value:
    return Value(shape=shape, dtype=torch.float32)


def _chain_seconds(
    module: ModuleType, x: Tensor, nodes: Sequence[Node], quants: dict[str, Quant]
) -> float:
    """Of all the nodes but the first."""
    # Noise may make the difference tiny or negative; an equal part of the whole is the
    # least it can be.
    whole, first = (
        _engine_seconds(module, x, part, quants) for part in (nodes, nodes[:1])
    )
    return max(whole - first, whole / len(nodes))


def _engine_seconds(
    module: ModuleType, x: Tensor, nodes: Sequence[Node], quants: dict[str, Quant]
) -> float:
    values = {"x": _floats(*x.shape), **{node.name: node.value for node in nodes}}
    segment = Segment(Kernels(module, 1), nodes, values, {nodes[-1].name}, quants)
    return _best_seconds(lambda: segment.run(x))


def _best_seconds(call: Callable[[], Any]) -> float:
    # The first call fills caches and is not timed.
    call()
    best = math.inf
    for _ in range(7):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best
