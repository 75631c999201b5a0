"""`export_fpga`: write the whole folder."""

from __future__ import annotations

import hashlib
import json
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

from tersify.export.fpga.circuit import Circuit
from tersify.export.fpga.headers import (
    c_header,
    facts,
    verilog_header,
    verilog_instances,
)
from tersify.export.fpga.memories import write_layer, write_words
from tersify.export.fpga.readme import makefile, readme
from tersify.export.fpga.synthesis import Counts, synthesize
from tersify.runtime.fixed import FixedNetwork, Ints

RTL = ("tersify_decoder.v", "tersify_lane.v", "tersify_layer.v", "testbench.v")


def export_fpga(
    network: FixedNetwork,
    out: Path,
    *,
    vectors: int = 100,
    seed: int = 0,
    inputs: Ints | None = None,
    lanes: int = 1,
    synth: bool = False,
) -> dict[str, Any]:
    """Write tables, codes, biases, Verilog and golden vectors into `out`; returns the
    manifest.

    The vectors are random over the whole input range, or `inputs`. `lanes` neurons of a
    layer are summed at once. With `synth`, yosys counts the cells.
    """
    values = (
        network.random_inputs(max(vectors, 0), seed)
        if inputs is None
        else _checked(network, inputs)
    )
    if not len(values):
        raise ValueError(
            f"at least one golden vector is needed, got {vectors if inputs is None else 0}"
        )
    # Everything that may be refused is refused before the folder is made.
    circuits = {
        name: Circuit.of(layer, lanes) for name, layer in network.layers.items()
    }
    for name, layer in network.layers.items():
        if layer.output_shift < 0:
            raise ValueError(
                f"{name}: the output has more fraction bits than the accumulator; give it fewer"
            )
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; give another --out, or clear it")
    out.mkdir(parents=True, exist_ok=True)
    for file in RTL:
        shutil.copyfile(
            Path(str(files("tersify.export.fpga") / "rtl" / file)), out / file
        )
    for number, circuit in enumerate(circuits.values(), 1):
        layer = circuit.layer
        write_layer(out, f"layer{number}", circuit)
        write_words(out / f"layer{number}_inputs.mem", values, layer.input.width)
        # The integer simulation gives what the circuit must give; a layer's outputs are
        # the next one's inputs, so every layer is tested on real values.
        values = layer(values)
        write_words(out / f"layer{number}_expected.mem", values, layer.output.width)
    count = len(values)
    ordered = list(circuits.values())
    (out / "params.h").write_text(c_header(ordered), encoding="utf-8")
    (out / "params.vh").write_text(verilog_header(ordered, count), encoding="utf-8")
    (out / "layers.vh").write_text(verilog_instances(ordered), encoding="utf-8")
    (out / "Makefile").write_text(makefile(ordered[0]), encoding="utf-8")
    counts: list[Counts] = synthesize(out, ordered[0]) if synth else []
    manifest = {
        "layers": {name: facts(circuit) for name, circuit in circuits.items()},
        "code_order": "layerN_codes.bin: row-major (output, input); layerN_codes.mem: word group · inputs + input "
        "holds a code for each lane's output; codes ascend with their levels",
        "packing": "codes lie in bytes and words least significant bit first: with n = 4, the low nibble is the first",
        "table_entry": "internal flag above m word bits",
        "vectors": count,
        "synthesis": [c.to_dict() for c in counts],
    }
    (out / "README.md").write_text(readme(circuits, counts), encoding="utf-8")
    # Last, over all files but the manifest itself.
    manifest["sha256"] = {
        p.name: _digest(p) for p in sorted(out.iterdir()) if p.is_file()
    }
    (out / "manifest.json").write_text(
        json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    return manifest


def _checked(network: FixedNetwork, inputs: Ints) -> Ints:
    width, form = next(iter(network.layers.values())).inputs, network.input
    if inputs.ndim != 2 or inputs.shape[1] != width:
        raise ValueError(
            f"golden inputs must be rows of {width} integers, got shape {inputs.shape}"
        )
    if inputs.size and (inputs.min() < form.lowest or inputs.max() > form.highest):
        raise ValueError(
            f"golden inputs must lie in {form.lowest}..{form.highest}, got {inputs.min()}..{inputs.max()}; "
            "saturate and count them with runtime.fixed.quantize"
        )
    return inputs


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
