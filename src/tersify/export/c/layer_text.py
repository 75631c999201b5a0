"""Constants and layers as C text."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tersify.export.c.c_steps import Step
from tersify.export.c.constants import Quant
from tersify.export.c.stored import FLOATS

LARGEST = "3.402823466e38f"
WINDOW = (
    "kernel_h",
    "kernel_w",
    "stride_h",
    "stride_w",
    "pad_h",
    "pad_w",
    "dilation_h",
    "dilation_w",
)
TYPES = """typedef struct {
  uint32_t rows, row_weights, group_rows;
  int32_t group_channels, in_h, in_w, out_h, out_w;
  int32_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, in_zero;
  uint8_t form, activation, mean_activation, multiplies;
  const uint8_t *stream;
  const float *floats, *a, *b, *c, *d, *slopes;
  float low, high, fraction;
  float byte_inverse, byte_zero, byte_low, byte_high; /* of bytes behind a curve */
  const float *mean_steps, *mean_scale, *mean_shift;
  float mean_low, mean_high;
} layer;

typedef struct {
  float scale, low, high, zero;
} quant;

typedef struct {
  int32_t size, low, high, stride;
} axis;
"""


class Tables:
    """Arrays of the source; equal ones are written once."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[tuple[str, bytes], str] = {}

    def floats(self, numbers: npt.NDArray[np.float32] | None) -> str:
        if numbers is None or not numbers.size:
            return "0"
        return self._name(
            "float", numbers.tobytes(), map(float_text, numbers.reshape(-1).tolist())
        )

    def stream(self, stream: bytes) -> str:
        return self._name("uint8_t", stream, map(str, stream)) if stream else "0"

    def axes(self, axes: tuple[tuple[int, ...], ...]) -> str:
        texts = ["{" + ", ".join(map(str, one)) + "}" for one in axes]
        return self._name("axis", ",".join(texts).encode(), texts)

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


def layer_text(step: Step, tables: Tables) -> str:
    channels, in_h, in_w = step.reads[0].shape
    held = step.weights
    _, out_h, out_w = (0, 1, 1) if step.means else step.writes.shape
    if step.means and step.kernel != "mean_f32":
        out_h, out_w = plane_of(step)
    plane = in_h * in_w if step.kernel == "mean_f32" else out_h * out_w
    fraction = float(np.float32(1.0) / np.float32(plane)) if step.means else 0.0
    mean = step.mean or (None, None)
    # of a convolution it goes with the other summand alone
    c = step.c if step.kernel == "elementwise" or len(step.reads) > 1 else None
    fields = {
        "rows": step.rows,
        "row_weights": held.row_weights if held else 0,
        "group_rows": step.rows // step.groups,
        "group_channels": channels // step.groups,
        "in_h": in_h,
        "in_w": in_w,
        "out_h": out_h,
        "out_w": out_w,
        **dict(zip(WINDOW, step.window, strict=True)),
        "in_zero": step.zero,
        "form": held.form if held else FLOATS,
        "activation": step.activation,
        "mean_activation": step.mean_activation,
        "multiplies": int(step.multiplies),
        "stream": tables.stream(held.stream) if held else "0",
        "floats": tables.floats(held.floats) if held else "0",
        "a": tables.floats(step.a),
        "b": tables.floats(step.b),
        "c": tables.floats(c),
        "d": tables.floats(step.d),
        "slopes": tables.floats(step.slopes),
        "low": float_text(step.low),
        "high": float_text(step.high),
        "fraction": float_text(fraction),
        **{
            f"byte_{name}": float_text(number)
            for name, number in zip(
                ("inverse", "zero", "low", "high"), step.bytes_behind, strict=True
            )
        },
        "mean_steps": tables.floats(step.mean_steps),
        "mean_scale": tables.floats(mean[0]),
        "mean_shift": tables.floats(mean[1]),
        "mean_low": float_text(step.mean_ends[0]),
        "mean_high": float_text(step.mean_ends[1]),
    }
    return "{" + ", ".join(f".{key} = {value}" for key, value in fields.items()) + "}"


def plane_of(step: Step) -> tuple[int, int]:
    """Height and width of what a convolution makes, or takes the mean of."""
    kh, kw, sh, sw, ph, pw, dh, dw = step.window
    _, h, w = step.reads[0].shape
    return (
        (h + 2 * ph - dh * (kh - 1) - 1) // sh + 1,
        (w + 2 * pw - dw * (kw - 1) - 1) // sw + 1,
    )


def quant_text(q: Quant | None) -> str:
    assert q is not None
    return "{" + ", ".join(map(float_text, (q.scale, q.low, q.high, q.zero))) + "}"


def float_text(number: float) -> str:
    """Nine digits bring every 32-bit float back."""
    if math.isinf(number):
        return f"-{LARGEST}" if number < 0 else LARGEST
    text = f"{np.float32(number):.9g}"
    return (text if any(c in text for c in ".e") else text + ".0") + "f"
