"""Products of bits beside our ternary int8 kernel: a 4096 × 4096 weight times one vector,
and a 3×3 convolution of 256 channels.

`python benchmarks/bit_products.py [--quick] [--json FILE]`

One thread, the process's CPU time, all engines in turn; the median of the rounds. Every
result is compared with torch's on the same levels first: sums of whole numbers, which
must be equal.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from common import interleaved, report
from torch import Tensor

from tersify.runtime.capture.values import Value
from tersify.runtime.engine import Kernels, Segment
from tersify.runtime.extension import extension
from tersify.runtime.ops import Conv, ConvKernel, Levels, Linear, LinearKernel, Window
from tersify.runtime.plan import Node, Quant
from tersify.runtime.weights import Weight, WeightKind

SIZE, CHANNELS, IMAGE = 4096, 256, 16
BASE = "ternary-int8"
SIGNS = Levels(quant=None)
TERNARY = Levels(quant=Quant(scale=1.0, low=-1, high=1))
BYTES = Quant(scale=1 / 32, low=-127, high=127)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A layer alone, what it reads, and what torch makes of it."""

    name: str
    op: Linear | Conv
    x: Tensor
    wanted: Tensor
    products: int

    def segment(self) -> Segment:
        module = extension()
        assert module is not None, "the kernels are not built here"
        node = Node(name="y", op=self.op, inputs=("x",), value=_floats(self.wanted))
        values = {"x": _floats(self.x), "y": node.value}
        return Segment(Kernels(module, 1), [node], values, {"y"}, {"x": BYTES})


def _floats(tensor: Tensor) -> Value:
    return Value(shape=tuple(tensor.shape), dtype=torch.float32)


def weight(*shape: int, zeros: float) -> Weight:
    g = torch.Generator().manual_seed(0)
    signs = torch.where(torch.randn(shape, generator=g) >= 0, 1.0, -1.0)
    kept = torch.rand(shape, generator=g) >= zeros
    return Weight(kind=WeightKind.SIGN, values=signs * kept)


def cases() -> list[Case]:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(1, SIZE, generator=g)
    # Whole steps of the int8 kernel's own scale, so that its sums are exact as well.
    steps = (x * 40).round().clamp(-127, 127)
    steps[0, 0] = 127.0
    binary, ternary = (weight(SIZE, SIZE, zeros=z) for z in (0.0, 1 / 3))
    window = Window(3, 3, 1, 1, 1, 1)
    filters = [weight(CHANNELS, CHANNELS, 3, 3, zeros=z) for z in (0.0, 1 / 3)]
    image = torch.randn(1, CHANNELS, IMAGE, IMAGE, generator=g)

    def linear(
        name: str, w: Weight, kernel: LinearKernel, given: Tensor, levels: Levels | None
    ) -> Case:
        read = given if levels is None else levels.of(given)
        return Case(
            name=f"linear4096.{name}",
            op=Linear(weight=w, kernel=kernel, levels=levels),
            x=given,
            wanted=F.linear(read, w.values),
            products=w.values.numel(),
        )

    def conv(name: str, w: Weight, kernel: ConvKernel, levels: Levels) -> Case:
        return Case(
            name=f"conv256.{name}",
            op=Conv(weight=w, window=window, groups=1, kernel=kernel, levels=levels),
            x=image,
            wanted=F.conv2d(levels.of(image), w.values, padding=1),
            products=w.values.numel() * IMAGE * IMAGE,
        )

    return [
        linear(BASE, ternary, LinearKernel.I8, steps, None),
        linear("binary-binary", binary, LinearKernel.BITS, x, SIGNS),
        linear("ternary-ternary", ternary, LinearKernel.BITS, x, TERNARY),
        linear("ternary-binary", ternary, LinearKernel.BITS, x, SIGNS),
        conv(BASE, filters[1], ConvKernel.CODES_I8, Levels(quant=BYTES)),
        conv("binary-binary", filters[0], ConvKernel.BITS, SIGNS),
        conv("ternary-ternary", filters[1], ConvKernel.BITS, TERNARY),
    ]


def run(segment: Segment, x: Tensor, made: Tensor) -> bool:
    """The engine's own call: what Python does around it is the same for all of them."""
    return bool(segment.engine.run(span(x), span(made)))


def span(tensor: Tensor) -> list[tuple[int, int]]:
    return [(tensor.data_ptr(), tensor.numel())]


def checked_calls(
    every: list[Case], figures: dict[str, float]
) -> dict[str, Callable[[], object]]:
    """A call of each, after its result was found equal to torch's."""
    calls: dict[str, Callable[[], object]] = {}
    for case in every:
        segment = case.segment()
        made = segment.run([case.x])
        assert made is not None
        apart = float((made[0] - case.wanted).abs().max())
        if apart != 0:
            raise SystemExit(f"{case.name} differs from torch by {apart}")
        figures[f"{case.name}.difference"] = apart
        calls[case.name] = functools.partial(run, segment, case.x, made[0])
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    every, figures = cases(), dict[str, float]()
    calls = checked_calls(every, figures)
    rounds, repeats = (5, 10) if given.quick else (60, 50)
    times = interleaved(
        calls, rounds=rounds, repeats=repeats, warm=3, clock=time.process_time
    )
    for case in every:
        milliseconds = statistics.median(times[case.name])
        figures[f"{case.name}.us"] = 1e3 * milliseconds
        figures[f"{case.name}.weights_per_ns"] = 1e-6 * case.products / milliseconds
    for case in every:
        layer, _, kind = case.name.partition(".")
        if kind != BASE:
            own = figures[f"{case.name}.weights_per_ns"]
            base = figures[f"{layer}.{BASE}.weights_per_ns"]
            figures[f"{case.name}.times_ternary_int8"] = own / base
    for name, figure in figures.items():
        print(f"{name:45} {figure:10.3f}")
    report(
        "bit-products",
        figures,
        json_path=given.json,
        versions={"torch": torch.__version__},
        threads=1,
        clock="CPU time of the process",
    )


if __name__ == "__main__":
    main()
