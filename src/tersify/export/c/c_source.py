"""The text of the C source: constants, weights, the kernels, and one function that runs
the steps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from importlib import resources

import numpy as np
import numpy.typing as npt

from tersify.export.c.arena import IN_PLACE, places
from tersify.export.c.c_steps import Buffer, Step, Steps
from tersify.export.c.constants import Quant
from tersify.export.c.stored import FLOATS

LARGEST = "3.402823466e38f"
CONVERSIONS = ("to_bytes", "to_floats")

_TYPES = """typedef struct {
  uint32_t rows, row_weights, group_rows;
  int32_t group_channels, in_h, in_w, out_h, out_w;
  int32_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, in_zero;
  uint8_t form;
  const uint8_t *stream;
  const float *floats, *a, *b, *c;
  float low, high, fraction;
  const float *mean_steps, *mean_scale, *mean_shift;
  float mean_low, mean_high;
} layer;

typedef struct {
  float scale, low, high, zero;
} quant;
"""


def header(name: str, steps: Steps, arena: int) -> str:
    guard = f"{name.upper()}_H"
    arguments = _arguments(steps)
    sizes = [
        f"#define {name.upper()}_INPUT{i} {b.count}" for i, b in enumerate(steps.inputs)
    ]
    sizes += [
        f"#define {name.upper()}_OUTPUT{i} {b.count}"
        for i, b in enumerate(steps.outputs)
    ]
    return "\n".join(
        [
            f"#ifndef {guard}",
            f"#define {guard}",
            "",
            "/* Floats in, floats out, one item; not for two threads at once: the arena is static. */",
            *sizes,
            f"#define {name.upper()}_ARENA_BYTES {arena}",
            "",
            f"void {name}_run({arguments});",
            "",
            "#endif",
            "",
        ]
    )


def source(name: str, steps: Steps) -> tuple[str, int]:
    """The C text, and the bytes of the arena."""
    at, arena = places(steps)
    sums = max(
        (
            s.writes.count // s.rows if not s.means else _plane(s)
            for s in steps.steps
            if s.rows
        ),
        default=1,
    )
    rounded = max(
        (s.reads[0].count for s in steps.steps if s.kernel == "linear_i8"), default=1
    )
    tables = _Tables()
    layers, quants, calls = [], [], []
    for number, step in enumerate(steps.steps):
        if step.kernel in CONVERSIONS:
            quants.append(
                f"static const quant q{number} = {_quant(step.writes.quant or step.reads[0].quant)};"
            )
            calls.append(_conversion(step, number, steps, at))
        else:
            layers.append(f"static const layer l{number} = {_layer(step, tables)};")
            calls.append(_call(step, number, steps, at))
    kernels = resources.files(__package__).joinpath("kernels.c.in").read_text()
    parts = [
        f"/* Made by tersify; runs {len(steps.steps)} steps in an arena of {arena} bytes. */",
        f'#include "{name}.h"',
        "#include <stdint.h>",
        "#include <string.h>",
        "",
        f"#define SUMS {sums}",
        f"#define STEPS {rounded}",
        "",
        _TYPES,
        *tables.lines,
        "",
        _needed(kernels, {s.kernel for s in steps.steps}),
        *layers,
        *quants,
        "",
        f"static union {{ uint64_t aligned; uint8_t bytes[{max(arena, 1)}]; }} arena;",
        "",
        f"void {name}_run({_arguments(steps)}) {{",
        *calls,
        "}",
        "",
    ]
    return "\n".join(parts), arena


def _needed(kernels: str, used: set[str]) -> str:
    """Without the kernels that nobody calls: a compiler would warn of each."""
    blocks = kernels.split("\n\n")
    optional = {
        "conv_i8",
        "conv_f32",
        "conv_codes",
        "to_bytes",
        "to_floats",
        "max_f32",
        "elementwise",
        "mean_f32",
        "mean_windows",
        "linear_i8",
    }
    convolutions = {"conv_i8", "conv_f32", "conv_codes"}
    helpers = {
        "write_mean": {"conv_i8", "conv_f32", "mean_f32"},
        "sum_of": {"conv_f32", "mean_f32"},
        "rounded": {"conv_i8", "to_bytes", "linear_i8"},
        "inside": convolutions,
        "place": convolutions,
    }
    kept = []
    for block in blocks:
        found = re.search(r"^static [^\n(]*?(\w+)\(", block, re.MULTILINE)
        name = found.group(1) if found else ""
        if (name in optional and name not in used) or (
            name in helpers and not helpers[name] & used
        ):
            continue
        kept.append(block)
    return "\n\n".join(kept)


def _plane(step: Step) -> int:
    kh, kw, sh, sw, ph, pw, dh, dw = step.window
    _, h, w = step.reads[0].shape
    return ((h + 2 * ph - dh * (kh - 1) - 1) // sh + 1) * (
        (w + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    )


class _Tables:
    """Arrays of the source; equal ones are written once."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[tuple[str, bytes], str] = {}

    def floats(self, numbers: npt.NDArray[np.float32] | None) -> str:
        if numbers is None or not numbers.size:
            return "0"
        return self._name(
            "float", numbers.tobytes(), map(_float, numbers.reshape(-1).tolist())
        )

    def stream(self, stream: bytes) -> str:
        return self._name("uint8_t", stream, map(str, stream)) if stream else "0"

    def _name(self, kind: str, key: bytes, items: Iterable[str]) -> str:
        if (kind, key) not in self._names:
            name = self._names[kind, key] = f"t{len(self._names)}"
            texts = list(items)
            lines = [",".join(texts[i : i + 24]) for i in range(0, len(texts), 24)]
            self.lines.append(
                f"static const {kind} {name}[{len(texts)}] = {{\n"
                + ",\n".join(lines)
                + "};"
            )
        return self._names[kind, key]


def _layer(step: Step, tables: _Tables) -> str:
    channels, in_h, in_w = step.reads[0].shape
    held = step.weights
    _, out_h, out_w = (0, 1, 1) if step.means else step.writes.shape
    if step.means and step.kernel != "mean_f32":
        kh, kw, sh, sw, ph, pw, dh, dw = step.window
        out_h, out_w = (
            (in_h + 2 * ph - dh * (kh - 1) - 1) // sh + 1,
            (in_w + 2 * pw - dw * (kw - 1) - 1) // sw + 1,
        )
    plane = in_h * in_w if step.kernel == "mean_f32" else out_h * out_w
    fraction = float(np.float32(1.0) / np.float32(plane)) if step.means else 0.0
    mean = step.mean or (None, None)
    fields = {
        "rows": step.rows,
        "row_weights": held.row_weights if held else 0,
        "group_rows": step.rows // step.groups,
        "group_channels": channels // step.groups,
        "in_h": in_h,
        "in_w": in_w,
        "out_h": out_h,
        "out_w": out_w,
        **dict(
            zip(
                (
                    "kernel_h",
                    "kernel_w",
                    "stride_h",
                    "stride_w",
                    "pad_h",
                    "pad_w",
                    "dilation_h",
                    "dilation_w",
                ),
                step.window,
                strict=True,
            )
        ),
        "in_zero": step.zero,
        "form": held.form if held else FLOATS,
        "stream": tables.stream(held.stream) if held else "0",
        "floats": tables.floats(held.floats) if held else "0",
        "a": tables.floats(step.a),
        "b": tables.floats(step.b),
        "c": tables.floats(step.c) if len(step.reads) > 1 else "0",
        "low": _float(step.low),
        "high": _float(step.high),
        "fraction": _float(fraction),
        "mean_steps": tables.floats(step.mean_steps),
        "mean_scale": tables.floats(mean[0]),
        "mean_shift": tables.floats(mean[1]),
        "mean_low": _float(step.mean_ends[0]),
        "mean_high": _float(step.mean_ends[1]),
    }
    return "{" + ", ".join(f".{key} = {value}" for key, value in fields.items()) + "}"


def _quant(q: Quant | None) -> str:
    assert q is not None
    return "{" + ", ".join(_float(n) for n in (q.scale, q.low, q.high, q.zero)) + "}"


def _float(number: float) -> str:
    """Nine digits bring every 32-bit float back."""
    if math.isinf(number):
        return f"-{LARGEST}" if number < 0 else LARGEST
    text = f"{np.float32(number):.9g}"
    return (text if any(c in text for c in ".e") else text + ".0") + "f"


def _arguments(steps: Steps) -> str:
    given = [f"const float *input{i}" for i in range(len(steps.inputs))]
    return ", ".join(
        [*given, *(f"float *output{i}" for i in range(len(steps.outputs)))]
    )


def _pointer(
    buffer: Buffer, steps: Steps, at: dict[Buffer, int], *, const: bool
) -> str:
    memory = buffer.memory
    for word, ports in (("output", steps.outputs), ("input", steps.inputs)):
        for number, port in enumerate(ports):
            if port.memory is memory:
                return f"{word}{number}"
    kind = "uint8_t" if buffer.quant is not None else "float"
    return f"({'const ' if const else ''}{kind} *)(void *)(arena.bytes + {at[memory]})"


def _call(step: Step, number: int, steps: Steps, at: dict[Buffer, int]) -> str:
    reads = [_pointer(buffer, steps, at, const=True) for buffer in step.reads]
    if step.kernel in IN_PLACE and len(reads) < 2:
        reads.append("0")
    target = _pointer(step.writes, steps, at, const=False)
    if step.kernel == "conv_i8" and step.means:
        target = f"(uint8_t *)(void *)({target})"
    return f"  {step.kernel}(&l{number}, {', '.join(reads)}, {target});"


def _conversion(step: Step, number: int, steps: Steps, at: dict[Buffer, int]) -> str:
    read = _pointer(step.reads[0], steps, at, const=True)
    target = _pointer(step.writes, steps, at, const=False)
    return f"  {step.kernel}({read}, {target}, {step.writes.count}, &q{number});"
