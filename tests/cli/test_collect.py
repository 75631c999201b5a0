"""`tersify collect` as a shell calls it."""

import json

import pytest
import torch

import tersify
from tersify.cli import main
from tersify.lab import network

RECIPE = '[[rules]]\nmethods = [{ method = "prune", sparsity = 0.8 }]\n'
SMALL = ["--option", "width=0.25", "--columns", "32", "--batch", "2"]


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE)
    return str(path)


def failed(capsys):
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    return lines[0]


def test_a_network_is_pruned_collected_timed_and_exported(recipe, tmp_path, capsys):
    out, timings = tmp_path / "c", tmp_path / "timings.json"
    flags = [
        "--bench",
        "--backend",
        "scipy-csr",
        "--rounds",
        "1",
        "--json",
        str(timings),
        "--export",
        "mtx",
    ]
    target = [
        "collect",
        "digits-cnn",
        "--data",
        "digits",
        "--recipe",
        recipe,
        "--out",
        str(out),
    ]
    assert main([*target, *SMALL, *flags, "--evaluate", "--licence", "CC0-1.0"]) == 0
    made = tersify.Collection(out)
    assert all(op.name.startswith("digits-cnn/") for op in made)
    assert {op.kind for op in made} == {"conv2d", "linear"}
    meta = made[0].meta
    assert meta["target_sparsity"] == 0.8
    assert meta["model"]["calibration"] == "2 training samples of digits"
    assert 0 <= meta["model"]["accuracy"] <= 100
    record = json.loads(timings.read_text())
    assert {"commit", "machine", "versions", "threads", "rows", "winners"} <= set(
        record
    )
    assert len(record["rows"]) == 2 * len(made)
    assert len(list((out / "export-mtx").iterdir())) == 3 * len(made)
    printed = capsys.readouterr().out
    assert "times faster" in printed
    assert made.names[0] in printed
    assert (
        f"digits-cnn: 80.0 % zeros, accuracy {meta['model']['accuracy']:.2f} %"
        in printed
    )
    # The collection that is there can be timed again, by itself.
    assert (
        main(
            ["collect", str(out), "--bench", "--backend", "torch-csr", "--rounds", "1"]
        )
        == 0
    )
    assert "torch-csr" in capsys.readouterr().out


def test_a_terse_file_brings_recipe_shape_hash_and_accuracy(recipe, tmp_path):
    net = network("digits-cnn", width=0.25)
    packed = tersify.compress_(net, recipe)
    packed.metadata |= {
        "target": {"name": "digits-cnn", "options": {"width": 0.25}},
        "input": [1, 8, 8],
    }
    tersify.save(packed, tmp_path / "model.terse")
    (tmp_path / "metrics.json").write_text(json.dumps({"accuracy": 12.5}))
    file = str(tmp_path / "model.terse")
    assert main(["collect", file, "--out", str(tmp_path / "a"), *SMALL[2:]]) == 0
    named = ["collect", "digits-cnn", "--weights", file, "--name", "mine", *SMALL]
    assert main([*named, "--out", str(tmp_path / "a"), "--append"]) == 0
    made = tersify.Collection(tmp_path / "a")
    assert list(made.models) == ["model", "mine"]
    for model in made.models.values():
        assert model["accuracy"] == 12.5
        assert model["calibration"] == "2×1×8×8 random normal numbers"
        assert len(model["checkpoint"]["sha256"]) == 64
    assert (
        made["mine/" + made.names[0].partition("/")[2]].meta["method"][0]["method"]
        == "prune"
    )


def test_a_network_of_tokens_gets_random_ones(recipe, tmp_path):
    file = tmp_path / "nets.py"
    file.write_text(
        "from torch import nn\ndef net(): return nn.Sequential(nn.Embedding(40, 8), nn.LSTM(8, 8))\n"
    )
    out = tmp_path / "c"
    assert (
        main(
            [
                "collect",
                f"{file}:net",
                "--recipe",
                recipe,
                "--out",
                str(out),
                "--batch",
                "2",
            ]
        )
        == 0
    )
    op, *_ = tersify.Collection(out)
    assert op.name.startswith("nets:net/1.")  # a glob leaves the embedding alone
    assert op.meta["model"]["calibration"] == "2×32 random token numbers"
    again = [
        "collect",
        f"{file}:net",
        "--recipe",
        recipe,
        "--out",
        str(out),
        "--append",
        "--name",
        "short",
    ]
    assert main([*again, "--batch", "2", "--shape", "5"]) == 0
    assert (
        tersify.Collection(out).models["short"]["calibration"]
        == "2×5 random token numbers"
    )


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (["digits-cnn", "--data", "digits"], ["--out is missing"]),
        (
            ["digits-cnn", "--data", "digits", "--out", "OUT", "--json", "x.json"],
            ["--json is for --bench; add that"],
        ),
        (
            [".", "--recipe", "twn", "--name", "x"],
            ["--recipe, --name changes nothing in the collection ."],
        ),
        (
            ["digits-cnn", "--data", "digits", "--out", "OUT"],
            ["no layer with at least 10 % zeros", "--dense"],
        ),
        (
            ["digits-cnm", "--data", "digits", "--out", "OUT"],
            ["'digits-cnm'", "nearest: 'digits-cnn'"],
        ),
        (["digits-cnn", "--out", "OUT"], ["--data, or --shape such as 3,32,32"]),
        (["digits-cnn", "--out", "OUT", "--shape", "1,x"], ["--shape takes", "'1,x'"]),
        (
            ["digits-cnn", "--out", "OUT", "--shape", "7,8,8", "--dense"],
            ["DigitsCnn cannot run on the example"],
        ),
        (
            ["digits-cnn", "--data", "digits", "--out", "OUT", "--format", "zip"],
            ["'zip'", "bitmap"],
        ),
        (
            ["digits-cnn", "--data", "digits", "--out", "OUT", "--backend", "mkl"],
            ["'mkl'", "torch-csr"],
        ),
        (
            ["digits-cnn", "--data", "digits", "--out", "OUT", "--export", "csv"],
            ["'csv'", "timeloop"],
        ),
        (
            ["digits-cnn", "--data", "digits", "--out", "OUT", "--columns", "0"],
            ["columns must be a whole number of at least 1"],
        ),
        (["digits-cnn", "--weights", "no.terse", "--out", "OUT"], ["no.terse"]),
        (["no.terse", "--out", "OUT"], ["no.terse"]),
        (["no.terse", "--weights", "other.terse", "--out", "OUT"], ["own weights"]),
        (
            ["digits-cnn", "--shape", "1,8,8", "--dense", "--evaluate", "--out", "OUT"],
            ["--evaluate needs --data"],
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_writes_nothing(flags, wanted, tmp_path, capsys):
    out = tmp_path / "out"
    assert (
        main(["collect", *(str(out) if flag == "OUT" else flag for flag in flags)]) == 2
    )
    sentence = failed(capsys)
    assert all(part in sentence for part in wanted), sentence
    assert not out.exists()


def test_the_folder_one_stands_in_can_be_the_collection(recipe, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    inode = here.stat().st_ino
    monkeypatch.chdir(here)
    assert (
        main(
            [
                "collect",
                "digits-cnn",
                "--data",
                "digits",
                "--recipe",
                recipe,
                "--out",
                ".",
                *SMALL,
            ]
        )
        == 0
    )
    assert len(tersify.Collection(".")) > 0
    assert here.stat().st_ino == inode  # a shell that stands in it sees it
    assert sorted(path.name for path in here.iterdir()) == ["arrays", "collection.json"]


def test_an_empty_folder_is_empty_again_after_a_mistake(tmp_path, monkeypatch, capsys):
    from tersify.sparse import collection_writer

    def broken(*args):
        raise OSError(28, "No space left on device", "there")

    monkeypatch.setattr(collection_writer, "_write", broken)
    (tmp_path / "c").mkdir()
    command = ["collect", "digits-cnn", "--shape", "1,8,8", "--dense", *SMALL]
    assert main([*command, "--out", str(tmp_path / "c")]) == 2
    assert list((tmp_path / "c").iterdir()) == []
    assert main([*command, "--out", str(tmp_path / "d")]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    capsys.readouterr()


def test_what_is_there_is_never_overwritten(recipe, tmp_path, capsys):
    out = tmp_path / "c"
    command = [
        "collect",
        "digits-cnn",
        "--data",
        "digits",
        "--recipe",
        recipe,
        "--out",
        str(out),
        *SMALL,
    ]
    assert main(command) == 0
    before = {path: path.read_bytes() for path in out.rglob("*.*")}
    capsys.readouterr()
    assert main(command) == 2
    assert "is not empty" in failed(capsys)
    assert main(["collect", str(out), "--out", str(tmp_path / "d")]) == 2
    assert "unknown network" in failed(capsys)
    assert {path: path.read_bytes() for path in out.rglob("*.*")} == before


def test_a_damaged_collection_is_one_sentence(tmp_path, capsys):
    assert main(["collect", str(tmp_path), "--bench"]) == 2
    assert "holds no collection.json" in failed(capsys)
    (tmp_path / "collection.json").write_text('{"format": "tersify-coll')
    assert main(["collect", str(tmp_path), "--bench"]) == 2
    assert "cut short" in failed(capsys)


def test_weights_of_a_torch_checkpoint_are_collected(tmp_path):
    net = network("digits-cnn", width=0.25)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter *= torch.rand_like(parameter) < 0.5
    torch.save(net.state_dict(), tmp_path / "net.pt")
    command = [
        "collect",
        "digits-cnn",
        "--weights",
        str(tmp_path / "net.pt"),
        "--shape",
        "1,8,8",
        *SMALL,
    ]
    assert main([*command, "--out", str(tmp_path / "c"), "--format", "best"]) == 0
    made = tersify.Collection(tmp_path / "c")
    assert all(op.weight.format == op.meta["weight"]["best_format"] for op in made)
    assert made.models["digits-cnn"]["checkpoint"]["name"] == "net.pt"
