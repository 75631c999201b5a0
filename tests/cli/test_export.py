"""`tersify export` on a file, and what it says to the wrong one."""

import pytest
import torch

import tersify
from tersify.cli import main
from tersify.lab.networks.speech import SpeechMlp
from tersify.tensor import CompressedModel


@pytest.fixture(scope="module")
def speech_file(tmp_path_factory):
    torch.manual_seed(0)
    packed = tersify.compress_(SpeechMlp("mask").eval(), "lut-4")
    packed.metadata |= {"target": {"name": "speech-mlp", "options": {"head": "mask"}}}
    path = tmp_path_factory.mktemp("export") / "speech.terse"
    tersify.save(packed, path)
    return path


def test_an_fpga_folder_from_a_file(speech_file, tmp_path, capsys):
    assert main(["export", "fpga", str(speech_file), "--out", str(tmp_path / "fpga"), "--vectors", "2"]) == 0
    assert "hidden: 1032 → 256, 4-bit codes" in capsys.readouterr().out
    assert (tmp_path / "fpga" / "layer2_codes.bin").stat().st_size == 256 * 129 // 2


@pytest.mark.parametrize("integer", [False, True])
def test_an_onnx_file_from_a_file(speech_file, integer, tmp_path, capsys):
    pytest.importorskip("onnx", reason="needs onnx")
    out = tmp_path / "speech.onnx"
    assert main(["export", "onnx", str(speech_file), "--out", str(out), *["--integer"] * integer]) == 0
    assert f"{out.stat().st_size:,} bytes" in capsys.readouterr().out


def test_a_file_without_tables_has_no_circuit(tmp_path, capsys):
    tersify.save(CompressedModel({"weight": torch.zeros(3, 3)}), tmp_path / "dense.terse")
    assert main(["export", "fpga", str(tmp_path / "dense.terse"), "--out", str(tmp_path / "fpga")]) == 2
    assert "no compressed matrix" in capsys.readouterr().err
