"""`tersify bench`, and what one input of a file's network is for every command that
needs one.
"""

import json

import pytest
import torch

import tersify
from tersify import codec
from tersify.cli import main
from tersify.lab import network
from tersify.lab.random_inputs import random_input
from tersify.report import write_report
from tersify.runtime import benchmark
from tersify.tensor import CompressedModel


@pytest.mark.parametrize(
    "stored", [["x"], [None], "3,4", [0], [-1, 4], [True], [1 << 20, 1 << 20]]
)
def test_an_impossible_input_size_in_a_file_is_refused(stored, tmp_path):
    net = torch.nn.Identity()
    with pytest.raises(ValueError, match="--shape takes whole numbers"):
        random_input(net, stored, None, 2)
    assert random_input(net, stored, "3,8,8", 2).shape == (2, 3, 8, 8)


def test_an_input_is_never_all_the_same_and_always_the_same_one():
    first, again = (
        random_input(torch.nn.Identity(), [3, 8, 8], None, 2) for _ in range(2)
    )
    assert first.std() > 0.5
    assert torch.equal(first, again)


def test_a_network_of_tokens_gets_token_numbers_of_its_table():
    tokens = random_input(network("lstm", vocabulary=7), None, None, 4)
    assert tokens.dtype == torch.int64
    assert (tokens.min(), tokens.max()) == (1, 6)
    assert random_input(network("lstm"), [5], None, 4).shape == (4, 5)


def test_a_speech_network_knows_what_it_hears():
    assert random_input(network("speech-mlp"), None, None, 2).shape == (2, 8, 129)


def test_without_any_shape_the_remedy_is_told():
    with pytest.raises(ValueError, match="is not known; give --shape such as 3,32,32"):
        random_input(torch.nn.Identity(), None, None, 2)


@pytest.fixture
def digits_run(tmp_path):
    metadata = {
        "target": {"name": "digits-cnn", "options": {"width": 0.25}},
        "input": [1, 8, 8],
    }
    state = network("digits-cnn", width=0.25).state_dict()
    tersify.save(CompressedModel(state, metadata=metadata), tmp_path / "model.terse")
    (tmp_path / "metrics.json").write_text(json.dumps({"accuracy": 12.5}))
    return tmp_path


def test_the_figures_in_a_file_say_where_they_come_from_and_the_report_reads_them(
    digits_run, monkeypatch
):
    row = benchmark.BenchRow(
        peer="tersify", batch=1, threads=1, times=[1.0, 3.0], round_medians=[2.0]
    )
    monkeypatch.setattr(benchmark, "bench", lambda *args, **kwargs: [row])
    file = digits_run / "bench.json"
    assert (
        main(
            [
                "bench",
                str(digits_run / "model.terse"),
                "--batch",
                "1",
                "--json",
                str(file),
            ]
        )
        == 0
    )
    found = json.loads(file.read_text())
    assert set(found) == {"rows", "errors", "command", "commit", "machine", "versions"}
    assert found["versions"]["torch"] == torch.__version__
    page = write_report([digits_run]).read_text()
    assert "bench cpu" in page
    assert found["machine"]["cpu"] in page
    assert "tersify" in page


def test_the_time_of_every_layer_reaches_the_report(digits_run, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "bench", lambda *args, **kwargs: [])
    file = digits_run / "bench.json"
    assert (
        main(
            [
                "bench",
                str(digits_run / "model.terse"),
                "--layers",
                "--threads",
                "1",
                "--json",
                str(file),
            ]
        )
        == 0
    )
    found = json.loads(file.read_text())
    weights = {
        name
        for name, value in network("digits-cnn", width=0.25).state_dict().items()
        if value.ndim > 1
    }
    assert weights <= {row["name"] for row in found["layers"]}
    assert all(row["ms"] > 0 for row in found["layers"] if row["name"] in weights)
    assert found["layers_batch"] == 1
    assert min(weights) in capsys.readouterr().out
    assert "Time per layer, ms" in write_report([digits_run]).read_text()


@pytest.mark.parametrize("flag", ["--threads", "--rounds", "--batch"])
@pytest.mark.parametrize(
    "command", [["bench", "no.terse"], ["collect", "no.terse", "--out", "c"]]
)
def test_nothing_can_be_measured_zero_times(command, flag, capsys):
    assert main([*command, flag, "0"]) == 2
    error = capsys.readouterr().err
    assert f"'{flag}'" in error
    assert "no.terse" not in error  # told before the file is looked at


@pytest.mark.parametrize("shrunk", [False, True])
def test_a_file_is_never_opened_with_another_limit_than_the_caller_s(
    shrunk, digits_run, monkeypatch
):
    path, limits, wanted = digits_run / "model.terse", [], 1 << 35
    if shrunk:
        assert (
            main(["shrink", str(path), "--out", str(digits_run / "small.terse")]) == 0
        )
        path = digits_run / "small.terse"

    def opened(
        file, *, max_decoded_bytes=codec.DEFAULT_MAX_DECODED_BYTES, of=codec.open
    ):
        limits.append(max_decoded_bytes)
        return of(file, max_decoded_bytes=max_decoded_bytes)

    monkeypatch.setattr(codec, "open", opened)
    monkeypatch.setattr(benchmark, "bench", lambda *args, **kwargs: [])
    limit = ["--max-decoded-bytes", str(wanted)]
    assert main(["bench", str(path), *limit]) == 0
    assert (
        main(["shrink", str(path), "--out", str(digits_run / "again.terse"), *limit])
        == 0
    )
    assert (
        main(
            [
                "export",
                "safetensors",
                str(path),
                "--out",
                str(digits_run / "dense.safetensors"),
                *limit,
            ]
        )
        == 0
    )
    assert set(limits) == {wanted}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_bench_on_a_gpu_that_is_not_there_is_one_sentence(tmp_path, capsys):
    tersify.save(tersify.pack(torch.nn.Linear(4, 3)), tmp_path / "net.terse")
    arguments = [
        "bench",
        str(tmp_path / "net.terse"),
        "--target",
        f"{tmp_path / 'net.py'}:net",
        "--shape",
        "4",
    ]
    (tmp_path / "net.py").write_text(
        "import torch\n\ndef net():\n    return torch.nn.Linear(4, 3)\n"
    )
    assert main([*arguments, "--device", "cuda"]) != 0
    assert "needs a GPU that torch can use" in capsys.readouterr().err
