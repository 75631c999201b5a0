"""`tersify export` on a file, and what it says to the wrong one."""

import numpy as np
import pytest
import torch

import tersify
from tersify.cli import main
from tersify.export.fpga.memories import read_words
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


def sound_file(path, rate=8000, channels=1):
    soundfile = pytest.importorskip("soundfile", reason="needs soundfile")
    samples = 0.5 * np.random.default_rng(0).standard_normal((rate // 2, channels))
    soundfile.write(path, samples, rate, subtype="FLOAT")
    return path


def test_a_sound_of_another_rate_and_in_stereo_is_converted_and_that_is_said(speech_file, tmp_path, capsys):
    sound = sound_file(tmp_path / "noise.wav", rate=16000, channels=2)
    told = ["export", "fpga", str(speech_file), "--out", str(tmp_path / "out"), "--sound", str(sound), "--vectors", "1"]
    assert main(told) == 0
    assert "(2 channels averaged, resampled from 16000 Hz): 1 of 64 frames" in capsys.readouterr().out


def test_golden_vectors_from_a_sound(speech_file, tmp_path, capsys):
    sound = sound_file(tmp_path / "noise.wav")
    out = tmp_path / "fpga"
    told = ["export", "fpga", str(speech_file), "--out", str(out), "--sound", str(sound), "--vectors", "3"]
    assert main([*told, "--lanes", "8"]) == 0
    said = capsys.readouterr().out
    assert "3 of 64 frames are golden vectors" in said
    assert "samples beyond their format were saturated" in said
    inputs = read_words(out / "layer1_inputs.mem", 8).reshape(3, 8, 129)
    assert (inputs[0] == inputs[0, 0]).all()  # the first frame stands for those before it
    assert len(np.unique(inputs[2])) > 20


def test_a_sound_needs_a_speech_network(tmp_path, capsys):
    model = torch.nn.Sequential(torch.nn.Linear(40, 30))
    tersify.save(tersify.compress_(model, "lut-4"), tmp_path / "net.terse")
    sound = sound_file(tmp_path / "noise.wav")
    told = ["export", "fpga", str(tmp_path / "net.terse"), "--out", str(tmp_path / "out"), "--sound", str(sound)]
    assert main(told) == 2
    assert "only the network speech-mlp hears sound" in capsys.readouterr().err


def test_the_integer_simulation_can_be_heard_and_dumped(speech_file, tmp_path, capsys):
    sound = sound_file(tmp_path / "noise.wav")
    told = ["enhance", str(sound), str(tmp_path / "out.wav"), "--model", str(speech_file)]
    assert main([*told, "--dump", str(tmp_path / "nodes.npz")]) == 2
    assert "add --integer" in capsys.readouterr().err
    assert main([*told, "--integer", "--dump", str(tmp_path / "nodes.npz")]) == 0
    said = capsys.readouterr().out
    nodes = np.load(tmp_path / "nodes.npz")
    assert {"samples", "fft.stage8.real", "hidden.accumulator", "gain", "output"} <= set(nodes)
    assert nodes["hidden.output"].shape == (64, 256)
    saturated = next(line for line in said.splitlines() if line.startswith("samples")).split()[-1]
    assert int(saturated) > 100


@pytest.mark.parametrize("command", [
    ["export", "fpga", "FILE", "--out", "OUT"], ["export", "onnx", "FILE", "--out", "OUT"],
    ["export", "onnx", "FILE", "--out", "OUT", "--integer"], ["enhance", "SOUND", "OUT", "--model", "FILE"],
    ["allocate", "speech-mlp", "--weights", "FILE", "--data", "digits", "--budget", "1000", "--out", "OUT"],
])  # fmt: skip
def test_a_file_may_not_decode_to_more_than_allowed(command, speech_file, tmp_path, capsys):
    places = {"FILE": speech_file, "OUT": tmp_path / "out", "SOUND": tmp_path / "noise.wav"}
    if "SOUND" in command:
        sound_file(tmp_path / "noise.wav")
    told = [str(places.get(part, part)) for part in command]
    assert main([*told, "--max-decoded-bytes", "1000"]) == 2
    assert "max_decoded_bytes" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


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
