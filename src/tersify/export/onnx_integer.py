"""The exact integer network as an ONNX graph: two MatMulInteger a layer, one for each
partition of the table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tersify.export.onnx_file import onnx_module, save_checked
from tersify.runtime.fixed import FixedLayer, FixedNetwork

ZERO_POINT = 128
# Added before a division and taken off behind it, so that truncation is rounding down
# for negative sums too.
POSITIVE = 1 << 30


def export_integer_onnx(network: FixedNetwork, path: Path) -> None:
    """int8 input `x` → int8 output `y`, equal to the integer simulation bit for bit.

    Both operands are uint8 with a zero point of 128: the one combination that no ONNX
    Runtime kernel saturates half way, with or without VNNI.
    """
    onnx = onnx_module()
    graph = _Graph(onnx)
    name, layers = "x", list(network.layers.values())
    for number, layer in enumerate(layers, 1):
        _check(layer, number)
        name = _add_layer(graph, layer, name, f"layer{number}")
    helper, int8 = onnx.helper, onnx.TensorProto.INT8
    graph.add("Identity", [name], "y")
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "tersify_integer",
            [helper.make_tensor_value_info("x", int8, ["batch", layers[0].inputs])],
            [helper.make_tensor_value_info("y", int8, ["batch", layers[-1].outputs])],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
        producer_name="tersify",
    )
    save_checked(model, path)


class _Graph:
    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(
            self.onnx.helper.make_node(
                kind, inputs, [output], name=output, **attributes
            )
        )
        return output

    def constant(self, name: str, values: Any) -> str:
        self.constants.append(self.onnx.numpy_helper.from_array(values, name))
        return name


def _check(layer: FixedLayer, number: int) -> None:
    words = layer.table.words
    # + 0.5 makes −128…127 symmetric: −127.5…127.5.
    if layer.accumulator.width > 31 or np.abs(words + 0.5).max() > ZERO_POINT:
        raise ValueError(
            f"layer {number} needs a {layer.accumulator.width}-bit accumulator and words of "
            f"{layer.table.format.m} bits; the integer graph has 31 and 8 (two's complement)"
        )
    if layer.rounding not in ("half-up", "floor") or layer.output_shift < 0:
        raise ValueError(
            f"layer {number}: the integer graph rounds half-up or floor, got {layer.rounding!r}"
        )


def _add_layer(graph: _Graph, layer: FixedLayer, x: str, stem: str) -> str:
    onnx, table = graph.onnx, layer.table
    uint8, int32, int8 = (
        onnx.TensorProto.UINT8,
        onnx.TensorProto.INT32,
        onnx.TensorProto.INT8,
    )

    def int32_constant(name: str, value: Any) -> str:
        return graph.constant(f"{stem}_{name}", np.asarray(value, np.int32))

    zero = graph.constant(f"{stem}_zero_point", np.uint8(ZERO_POINT))
    wide = graph.add("Cast", [x], f"{stem}_x32", to=int32)
    moved = graph.add(
        "Add", [wide, int32_constant("offset", ZERO_POINT)], f"{stem}_x_moved"
    )
    unsigned = graph.add("Cast", [moved], f"{stem}_x8", to=uint8)
    codes = graph.constant(f"{stem}_codes", np.ascontiguousarray(table.codes.T))
    index = graph.add("Cast", [codes], f"{stem}_index", to=int32)
    sums = []
    for part, chosen in (
        ("internal", table.internal[0]),
        ("external", ~table.internal[0]),
    ):
        # Two products, because internal words count in finer steps: the other
        # partition's words are zero in each, and zero is 128 in uint8 with this zero
        # point.
        words = np.where(chosen, table.words[0], 0) + ZERO_POINT
        weights = graph.add(
            "Gather",
            [graph.constant(f"{stem}_{part}_words", words.astype(np.uint8)), index],
            f"{stem}_{part}_weights",
        )
        sums.append(
            graph.add(
                "MatMulInteger", [unsigned, weights, zero, zero], f"{stem}_{part}_sums"
            )
        )
    shifted = graph.add(
        "Mul",
        [sums[1], int32_constant("shift", 1 << table.format.k)],
        f"{stem}_external_shifted",
    )
    both = graph.add("Add", [sums[0], shifted], f"{stem}_both")
    total = graph.add(
        "Add",
        [both, int32_constant("bias", layer.bias << layer.bias_shift)],
        f"{stem}_accumulator",
    )
    if layer.relu:
        total = graph.add("Max", [total, int32_constant("nothing", 0)], f"{stem}_relu")
    if layer.output_shift:
        half = 1 << (layer.output_shift - 1) if layer.rounding == "half-up" else 0
        lifted = graph.add(
            "Add", [total, int32_constant("half", POSITIVE + half)], f"{stem}_lifted"
        )
        divided = graph.add(
            "Div",
            [lifted, int32_constant("divisor", 1 << layer.output_shift)],
            f"{stem}_divided",
        )
        total = graph.add(
            "Sub",
            [divided, int32_constant("lift", POSITIVE >> layer.output_shift)],
            f"{stem}_rounded",
        )
    low, high = (
        int32_constant("lowest", layer.output.lowest),
        int32_constant("highest", layer.output.highest),
    )
    return graph.add(
        "Cast",
        [graph.add("Clip", [total, low, high], f"{stem}_clipped")],
        f"{stem}_y",
        to=int8,
    )
