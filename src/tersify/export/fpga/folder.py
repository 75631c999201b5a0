"""`export_fpga`: write the whole folder."""

from __future__ import annotations

import hashlib
import json
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from tersify.export.fpga.headers import c_header, facts, verilog_header, verilog_instances
from tersify.export.fpga.memories import write_layer, write_words
from tersify.export.fpga.readme import MAKEFILE, readme
from tersify.export.fpga.synthesis import Counts, synthesize
from tersify.runtime.fixed import FixedNetwork, Ints

RTL = ("tersify_decoder.v", "tersify_lane.v", "tersify_layer.v", "testbench.v")


def export_fpga(
    network: FixedNetwork, out: Path, *, vectors: int = 100, seed: int = 0, inputs: Ints | None = None,
    synth: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Write tables, codes, biases, Verilog and golden vectors into `out`; returns the manifest.

    The vectors are random over the whole input range, or `inputs`. With `synth`, yosys counts the cells.
    """
    if vectors < 1:
        raise ValueError(f"at least one golden vector is needed, got {vectors}")
    layers = list(network.layers.values())
    for name, layer in network.layers.items():
        if layer.rounding not in ("half-up", "floor"):
            raise ValueError(f"{name}: the circuit rounds half-up or floor, got {layer.rounding!r}")
        if layer.output_shift < 0:
            raise ValueError(f"{name}: the output has more fraction bits than the accumulator; give it fewer")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; give another --out, or clear it")
    out.mkdir(parents=True, exist_ok=True)
    for file in RTL:
        shutil.copyfile(Path(str(files("tersify.export.fpga") / "rtl" / file)), out / file)
    values = network.random_inputs(vectors, seed) if inputs is None else inputs
    for number, layer in enumerate(layers, 1):
        write_layer(out, f"layer{number}", layer)
        write_words(out / f"layer{number}_inputs.mem", values, layer.input.width)
        values = layer(values)
        write_words(out / f"layer{number}_expected.mem", values, layer.output.width)
    count = len(values)
    (out / "params.h").write_text(c_header(layers), encoding="utf-8")
    (out / "params.vh").write_text(verilog_header(layers, count), encoding="utf-8")
    (out / "layers.vh").write_text(verilog_instances(layers), encoding="utf-8")
    (out / "Makefile").write_text(MAKEFILE, encoding="utf-8")
    counts: list[Counts] = synthesize(out, layers[0]) if synth else []
    manifest = {
        "layers": {name: facts(layer) for name, layer in network.layers.items()},
        "code_order": "row-major (output, input); codes ascend with their levels",
        "packing": "layerN_codes.bin holds codes least significant bit first: with n = 4, the low nibble is the first",
        "table_entry": "internal flag above m word bits",
        "vectors": count,
        "synthesis": [c.to_dict() for c in counts],
    }
    (out / "README.md").write_text(readme(network, counts), encoding="utf-8")
    manifest["sha256"] = {p.name: _digest(p) for p in sorted(out.iterdir()) if p.is_file()}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return manifest


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_words(path: Path, width: int) -> Ints:
    """The inverse of `write_words` for signed integers."""
    words = np.array([int(line, 16) for line in path.read_text(encoding="ascii").split()], np.int64)
    return np.where(words >= 1 << (width - 1), words - (1 << width), words)
