"""The same facts for C (`params.h`), Verilog (`params.vh`, `layers.vh`) and programs
(`manifest.json`).
"""

from __future__ import annotations

from typing import Any

from tersify.export.fpga.circuit import Circuit
from tersify.runtime.fixed import FixedLayer, Format

PREFIX = "LAYER"


def c_header(circuits: list[Circuit]) -> str:
    lines = [
        "/* Written by tersify; see manifest.json. */",
        "#ifndef TERSIFY_PARAMS_H",
        "#define TERSIFY_PARAMS_H",
        "",
        f"#define TERSIFY_LAYERS {len(circuits)}",
    ]
    for number, circuit in enumerate(circuits, 1):
        layer = circuit.layer
        lines.append("")
        lines += [
            f"#define {PREFIX}{number}_{key} {value}"
            for key, value in circuit.parameters().items()
        ]
        size = 1 << layer.table.format.n
        words = ", ".join(map(str, layer.table.words[0].tolist()))
        inner = ", ".join(str(int(flag)) for flag in layer.table.internal[0].tolist())
        lines += [
            f"/* word · 2^-{layer.table.format.fraction}, internal words · 2^-"
            f"{layer.table.format.fraction + layer.table.format.k} */",
            f"static const int layer{number}_words[{size}] = {{{words}}};",
            f"static const unsigned char layer{number}_internal[{size}] = {{{inner}}};",
        ]
    return "\n".join([*lines, "", "#endif", ""])


def verilog_header(circuits: list[Circuit], vectors: int) -> str:
    lines = [
        "// Written by tersify; see manifest.json.",
        f"`define LAYERS {len(circuits)}",
        f"`define GOLDEN_VECTORS {vectors}",
    ]
    for number, circuit in enumerate(circuits, 1):
        lines += [
            f"`define {PREFIX}{number}_{key} {value}"
            for key, value in circuit.parameters().items()
        ]
    return "\n".join([*lines, ""])


def verilog_instances(circuits: list[Circuit]) -> str:
    """The testbench's inside: one test for each layer, and the verdict."""
    lines = ["// Written by tersify: included by testbench.v."]
    for number, circuit in enumerate(circuits, 1):
        values = "".join(
            f".{key}(`{PREFIX}{number}_{key}), " for key in circuit.parameters()
        )
        files = ", ".join(
            f'.{key}_FILE("layer{number}_{key.lower()}.mem")'
            for key in ("LUT", "CODES", "BIAS", "INPUTS", "EXPECTED")
        )
        lines += [
            f"wire done{number};",
            f"wire [31:0] errors{number};",
            f"layer_test #(.NUMBER({number}), {values}{files}) test{number} (.clk(clk), .reset(reset), "
            f".done(done{number}), .errors(errors{number}));",
        ]
    numbers = range(1, len(circuits) + 1)
    all_done = " && ".join(f"done{n}" for n in numbers)
    no_errors = " && ".join(f"errors{n} == 0" for n in numbers)
    lines += [
        f"always @(posedge clk) if (!reset && {all_done}) begin",
        f'    if ({no_errors}) $display("PASS: {len(circuits)} layers, %0d vectors, shift product %0d", '
        "`VECTORS, `SHIFT_PRODUCT);",
        '    else $display("FAIL");',
        "    $finish;",
        "end",
        "",
    ]
    return "\n".join(lines)


def facts(circuit: Circuit) -> dict[str, Any]:
    """A layer for manifest.json."""
    layer, form = circuit.layer, circuit.layer.table.format
    return {
        "outputs": layer.outputs,
        "inputs": layer.inputs,
        "lanes": circuit.lanes,
        "clocks": circuit.clocks,
        "n": form.n,
        "m": form.m,
        "k": form.k,
        "integer_bits": form.integer_bits,
        "storing": "magnitude, sign in the code"
        if form.sign_in_code
        else "two's complement",
        "word_fraction": form.fraction,
        "internal_word_fraction": form.fraction + form.k,
        "relu": layer.relu,
        "rounding": layer.rounding,
        "input": _format(layer.input),
        "output": _format(layer.output),
        "bias": _format(layer.bias_format),
        "accumulator": _format(layer.accumulator),
        "bias_shift_left": layer.bias_shift,
        "output_shift_right": layer.output_shift,
        "code_bytes": layer.table.code_bytes(),
        "table_bytes": layer.table.table_bytes(),
        "bias_bytes": layer.outputs * layer.bias_format.width // 8,
        "partition_is_xor_of_the_two_top_code_bits": _is_xor(layer),
    }


def _is_xor(layer: FixedLayer) -> bool:
    """Sorted codes with half of them internal, in the middle: code[n−1] ^ code[n−2]
    says which they are.
    """
    n = layer.table.format.n
    return n >= 2 and all(
        bool(inner) == bool((code >> (n - 1) ^ code >> (n - 2)) & 1)
        for code, inner in enumerate(layer.table.internal[0])
    )


def _format(form: Format) -> dict[str, Any]:
    return {"width": form.width, "fraction": form.fraction, "signed": form.signed}
