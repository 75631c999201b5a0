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


def test_export_alone_shows_its_help_as_the_program_alone_does(capsys):
    assert main([]) == main(["export"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "Usage: tersify export" in captured.out
    for kind in ("fpga", "onnx", "c", "safetensors", "gguf"):
        assert f" {kind} " in captured.out


def test_an_fpga_folder_from_a_file(speech_file, tmp_path, capsys):
    assert (
        main(
            [
                "export",
                "fpga",
                str(speech_file),
                "--out",
                str(tmp_path / "fpga"),
                "--vectors",
                "2",
            ]
        )
        == 0
    )
    assert "hidden: 1032 → 256, 4-bit codes" in capsys.readouterr().out
    assert (tmp_path / "fpga" / "layer2_codes.bin").stat().st_size == 256 * 129 // 2


def sound_file(path, rate=8000, channels=1):
    soundfile = pytest.importorskip("soundfile", reason="needs soundfile")
    samples = 0.5 * np.random.default_rng(0).standard_normal((rate // 2, channels))
    soundfile.write(path, samples, rate, subtype="FLOAT")
    return path


def test_a_sound_of_another_rate_and_in_stereo_is_converted_and_that_is_said(
    speech_file, tmp_path, capsys
):
    sound = sound_file(tmp_path / "noise.wav", rate=16000, channels=2)
    told = [
        "export",
        "fpga",
        str(speech_file),
        "--out",
        str(tmp_path / "out"),
        "--sound",
        str(sound),
        "--vectors",
        "1",
    ]
    assert main(told) == 0
    assert (
        "(2 channels averaged, resampled from 16000 Hz): 1 of 64 frames"
        in capsys.readouterr().out
    )


def test_golden_vectors_from_a_sound(speech_file, tmp_path, capsys):
    sound = sound_file(tmp_path / "noise.wav")
    out = tmp_path / "fpga"
    told = [
        "export",
        "fpga",
        str(speech_file),
        "--out",
        str(out),
        "--sound",
        str(sound),
        "--vectors",
        "3",
    ]
    assert main([*told, "--lanes", "8"]) == 0
    said = capsys.readouterr().out
    assert "3 of 64 frames are golden vectors" in said
    assert "samples beyond their format were saturated" in said
    inputs = read_words(out / "layer1_inputs.mem", 8).reshape(3, 8, 129)
    # the first frame stands for those before it
    assert (inputs[0] == inputs[0, 0]).all()
    assert len(np.unique(inputs[2])) > 20


def test_a_sound_needs_a_speech_network(tmp_path, capsys):
    model = torch.nn.Sequential(torch.nn.Linear(40, 30))
    tersify.save(tersify.compress_(model, "lut-4"), tmp_path / "net.terse")
    sound = sound_file(tmp_path / "noise.wav")
    told = [
        "export",
        "fpga",
        str(tmp_path / "net.terse"),
        "--out",
        str(tmp_path / "out"),
        "--sound",
        str(sound),
    ]
    assert main(told) == 2
    assert "only the network speech-mlp hears sound" in capsys.readouterr().err


def test_the_integer_simulation_can_be_heard_and_dumped(speech_file, tmp_path, capsys):
    sound = sound_file(tmp_path / "noise.wav")
    told = [
        "enhance",
        str(sound),
        str(tmp_path / "out.wav"),
        "--model",
        str(speech_file),
    ]
    assert main([*told, "--dump", str(tmp_path / "nodes.npz")]) == 2
    assert "add --integer" in capsys.readouterr().err
    assert main([*told, "--integer", "--dump", str(tmp_path / "nodes.npz")]) == 0
    said = capsys.readouterr().out
    nodes = np.load(tmp_path / "nodes.npz")
    assert {
        "samples",
        "fft.stage8.real",
        "hidden.accumulator",
        "gain",
        "output",
    } <= set(nodes)
    assert nodes["hidden.output"].shape == (64, 256)
    saturated = next(
        line for line in said.splitlines() if line.startswith("samples")
    ).split()[-1]
    assert int(saturated) > 100


@pytest.mark.parametrize(
    "command",
    [
        ["export", "fpga", "FILE", "--out", "OUT"],
        ["export", "onnx", "FILE", "--out", "OUT"],
        ["export", "onnx", "FILE", "--out", "OUT", "--integer"],
        ["enhance", "SOUND", "OUT", "--model", "FILE"],
        [
            "allocate",
            "speech-mlp",
            "--weights",
            "FILE",
            "--data",
            "digits",
            "--budget",
            "1000",
            "--out",
            "OUT",
        ],
    ],
)
def test_a_file_may_not_decode_to_more_than_allowed(
    command, speech_file, tmp_path, capsys
):
    places = {
        "FILE": speech_file,
        "OUT": tmp_path / "out",
        "SOUND": tmp_path / "noise.wav",
    }
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
    assert (
        main(
            [
                "export",
                "onnx",
                str(speech_file),
                "--out",
                str(out),
                *["--integer"] * integer,
            ]
        )
        == 0
    )
    assert f"{out.stat().st_size:,} bytes" in capsys.readouterr().out


def test_the_onnx_file_takes_the_input_that_the_file_names(tmp_path):
    pytest.importorskip("onnx", reason="needs onnx")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(20, 3))
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(20, 3))\n"
    )
    tersify.save(
        CompressedModel(net.state_dict(), metadata={"input": [4, 5]}),
        tmp_path / "net.terse",
    )
    command = [
        "export",
        "onnx",
        str(tmp_path / "net.terse"),
        "--target",
        f"{tmp_path / 'net.py'}:net",
    ]
    assert main([*command, "--out", str(tmp_path / "net.onnx")]) == 0
    assert (tmp_path / "net.onnx").is_file()


def test_a_file_of_an_unknown_input_is_not_guessed_to_be_of_images(tmp_path, capsys):
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef net(): return nn.Linear(32, 3)\n"
    )
    tersify.save(
        CompressedModel(torch.nn.Linear(32, 3).state_dict()), tmp_path / "net.terse"
    )
    command = [
        "export",
        "onnx",
        str(tmp_path / "net.terse"),
        "--target",
        f"{tmp_path / 'net.py'}:net",
    ]
    assert main([*command, "--out", str(tmp_path / "net.onnx")]) == 2
    assert "give --shape such as 3,32,32" in capsys.readouterr().err


def test_a_safetensors_file_holds_the_dense_state_under_every_name(tmp_path, capsys):
    from safetensors.torch import load_file

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Embedding(9, 6), torch.nn.Linear(6, 9), torch.nn.BatchNorm1d(9)
    )
    net[1].weight = net[0].weight
    packed = tersify.compress_(net, "twn")
    assert packed.aliases
    assert packed.compressed()
    tersify.save(packed, tmp_path / "net.terse")
    out = tmp_path / "new" / "net.safetensors"
    assert (
        main(["export", "safetensors", str(tmp_path / "net.terse"), "--out", str(out)])
        == 0
    )
    assert (
        f"{out}: {out.stat().st_size:,} bytes, 8 dense tensors"
        in capsys.readouterr().out
    )
    state = load_file(out)
    assert set(state) == set(net.state_dict())
    for name, tensor in net.state_dict().items():
        assert torch.equal(state[name], tensor), name
        assert state[name].dtype == tensor.dtype
    assert [path.name for path in out.parent.iterdir()] == ["net.safetensors"]


def test_a_safetensors_file_that_cannot_be_written_whole_leaves_the_old_one(
    speech_file, tmp_path, monkeypatch
):
    import os

    out = tmp_path / "net.safetensors"
    out.write_text("old")

    def full(*args):
        raise OSError(28, "No space left on device", str(out))

    monkeypatch.setattr(os, "fsync", full)
    assert (
        main(
            [
                "export",
                "safetensors",
                str(speech_file),
                "--out",
                str(out),
                "--overwrite",
            ]
        )
        == 2
    )
    assert [path.name for path in tmp_path.iterdir()] == ["net.safetensors"]
    assert out.read_text() == "old"


def test_a_file_without_tables_has_no_circuit(tmp_path, capsys):
    tersify.save(
        CompressedModel({"weight": torch.zeros(3, 3)}), tmp_path / "dense.terse"
    )
    assert (
        main(
            [
                "export",
                "fpga",
                str(tmp_path / "dense.terse"),
                "--out",
                str(tmp_path / "fpga"),
            ]
        )
        == 2
    )
    assert "no compressed matrix" in capsys.readouterr().err
