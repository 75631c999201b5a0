"""A user's mistake: one sentence with the value, the rule and the remedy, exit code 2,
nothing written.
"""

import pytest

from tersify.cli import main

GOOD = {
    "--data": "digits",
    "--recipe": "ternary-log",
    "--epochs": "1",
    "--device": "cpu",
}


def compress(out, target="digits-cnn", **flags):
    given = GOOD | {f"--{key.replace('_', '-')}": value for key, value in flags.items()}
    return main(
        [
            "compress",
            target,
            "--out",
            str(out),
            *(part for pair in given.items() for part in pair),
        ]
    )


def one_sentence(capsys):
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    return lines[0]


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ({"target": "resnet-20"}, ["'resnet-20'", "nearest: 'resnet20'"]),
        ({"target": "no_such.py:net"}, ["'no_such.py'"]),
        ({"data": "cifar01"}, ["'cifar01'", "cifar10"]),
        ({"recipe": "ternary-lag"}, ["'ternary-lag'", "ternary-log"]),
        ({"epochs": "0"}, ["epochs must be at least 1, got 0"]),
        ({"lr": "inf"}, ["lr must be a finite number, got inf"]),
        ({"lr": "-1"}, ["lr must be above 0, got -1"]),
        ({"set": "optimiser=sgd"}, ["'optimiser'", "nearest: 'optimizer'"]),
        ({"set": "optimizer"}, ["--set takes KEY=VALUE, got 'optimizer'"]),
        ({"set": "augmentation={cutuot=4}"}, ["'cutuot'", "cutout"]),
        ({"set": "augmentation={cutout='x'}"}, ["cutout must be of type int, got 'x'"]),
        ({"set": "milestones=5"}, ["milestones must be a list of numbers, got 5"]),
        ({"option": "width=abc"}, ["width must be in (0, 64], got 'abc'"]),
        ({"option": "width=true"}, ["width must be in (0, 64], got True"]),
        ({"option": "widht=2"}, ["'widht'", "nearest: 'width'"]),
        ({"weights": "nowhere.safetensors"}, ["no weights at nowhere.safetensors"]),
        (
            {"target": "resnet20", "option": "in_channels=3"},
            ["1×8×8", "'digits'", "another network"],
        ),
        ({"option": "classes=3"}, ["10 classes", "classes=10"]),
        ({"device": "tpu3000"}, ["'tpu3000'"]),
        ({"compile": "fast"}, ["compile must be one of"]),
    ],
)
def test_a_bad_argument_is_explained_and_writes_nothing(
    flags, wanted, tmp_path, capsys
):
    out = tmp_path / "out"
    assert compress(out, **flags) == 2
    sentence = one_sentence(capsys)
    for part in wanted:
        assert part in sentence
    assert not out.exists()


@pytest.mark.parametrize(
    ("methods", "wanted"),
    [
        ('{ method = "ternery" }', ["ternery", "ternary"]),
        ('{ method = "ternary", regime = "cubic" }', ["cubic"]),
        ('{ method = "ternary", delta = 0.1 }', ["delta"]),
        ('{ method = "ternary", delta0 = 0.0 }', ["delta0", "0"]),
        ('{ method = "ternary", cap = 1.5 }', ["cap", "1.5"]),
        ('{ method = "ternary", speed = -1.0 }', ["speed", "-1"]),
    ],
)
def test_a_bad_recipe_is_explained_and_writes_nothing(
    methods, wanted, tmp_path, capsys
):
    recipe = tmp_path / "mine.toml"
    recipe.write_text(f"[[rules]]\nmethods = [{methods}]\n")
    assert compress(tmp_path / "out", recipe=str(recipe)) == 2
    sentence = one_sentence(capsys)
    assert all(part in sentence for part in wanted), sentence
    assert not (tmp_path / "out").exists()


def test_a_recipe_for_language_models_names_their_command(tmp_path, capsys):
    assert compress(tmp_path / "out", recipe="lm-2bit") == 2
    assert "tersify compress-lm MODEL --recipe lm-2bit" in one_sentence(capsys)


def test_a_rule_that_matches_nothing_names_the_nearest_weights(tmp_path, capsys):
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        '[[rules]]\nweights = "classifer*"\nmethods = [{ method = "ternary" }]\n'
    )
    assert compress(tmp_path / "out", recipe=str(recipe)) == 2
    assert "classifer*" in one_sentence(capsys)
    assert not (tmp_path / "out").exists()


def test_an_empty_data_root_and_a_cut_cifar_file_are_named(tmp_path, capsys):
    (tmp_path / "root").mkdir()
    flags = {
        "target": "resnet20",
        "data": "cifar10",
        "data_root": str(tmp_path / "root"),
    }
    assert compress(tmp_path / "out", **flags) == 2
    sentence = one_sentence(capsys)
    assert "cifar-10" in sentence
    assert "--data-root" in sentence
    folder = tmp_path / "root" / "cifar-10-batches-bin"
    folder.mkdir()
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        (folder / name).write_bytes(b"short")
    assert compress(tmp_path / "out", **flags) == 2
    assert "bytes" in one_sentence(capsys)
    assert not (tmp_path / "out").exists()


def test_a_directory_with_other_things_in_it_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("precious")
    assert compress(tmp_path) == 2
    assert "is not empty" in one_sentence(capsys)
    assert (
        main(
            [
                "compress",
                "digits-cnn",
                "--out",
                str(tmp_path),
                "--resume",
                *(p for kv in GOOD.items() for p in kv),
            ]
        )
        == 2
    )
    assert "holds no run that could be resumed" in one_sentence(capsys)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("command", [["eval", "--data", "digits"], ["inspect"]])
def test_a_file_that_is_missing_or_no_terse_file_is_named(command, tmp_path, capsys):
    path = tmp_path / "net.terse"
    assert main([command[0], str(path), *command[1:]]) == 2
    assert "net.terse" in one_sentence(capsys)
    path.write_bytes(b"PK not a terse file")
    assert main([command[0], str(path), *command[1:]]) == 2
    assert "net.terse: no .terse file, or one cut short" in one_sentence(capsys)
    assert main([command[0], str(tmp_path), *command[1:]]) == 2
    assert f"{tmp_path}: Is a directory" in one_sentence(capsys)


def test_a_file_may_not_choose_which_code_runs(tmp_path, capsys):
    import torch

    import tersify

    (tmp_path / "evil.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\ndef net(): ...\n"
    )
    metadata = {"target": {"name": f"{tmp_path / 'evil.py'}:net", "options": {}}}
    path = tmp_path / "net.terse"
    tersify.save(
        tersify.CompressedModel({"w": torch.zeros(2)}, metadata=metadata), path
    )
    assert main(["eval", str(path), "--data", "digits"]) == 2
    assert "--target" in one_sentence(capsys)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (["eval", "FILE", "--data", "digits"], "say what it is with --target"),
        (
            ["collect", "FILE", "--shape", "1,8,8", "--out", "OUT"],
            "tersify collect file.py:function --weights FILE",
        ),
        (
            ["enhance", "a.wav", "b.wav", "--model", "FILE"],
            "enhancing takes the network speech-mlp",
        ),
        (
            [
                "compress",
                "digits-cnn",
                "--data",
                "digits",
                "--recipe",
                "twn",
                "--epochs",
                "1",
                "--out",
                "OUT",
                "--set",
                "teacher=FILE",
            ],
            "a teacher must be one",
        ),
        (
            ["eval", "FILE", "--data", "digits", "--target", "digits-cnn"],
            "the file was made with the options {'size': 2}; check --target and --option",
        ),
    ],
)
def test_a_file_of_somebody_s_own_network_is_told_what_this_command_can_do_with_it(
    command, wanted, tmp_path, capsys
):
    import torch

    import tersify

    path, out = tmp_path / "net.terse", tmp_path / "out"
    metadata = {"target": {"name": "mine.py:net", "options": {"size": 2}}}
    tersify.save(
        tersify.CompressedModel({"w": torch.zeros(2)}, metadata=metadata), path
    )
    assert (
        main(
            [
                word.replace("FILE", str(path)).replace("OUT", str(out))
                for word in command
            ]
        )
        == 2
    )
    assert wanted.replace("FILE", str(path)) in one_sentence(capsys)


def test_unknown_experiments_and_rows_name_the_known_ones(tmp_path, capsys):
    assert main(["reproduce", "ternary-table3"]) == 2
    assert "nearest: 'ternary-table2'" in one_sentence(capsys)
    assert main(["reproduce", "lut-table"]) == 2
    assert "nearest: 'lut-table3'" in one_sentence(capsys)
    assert (
        main(["reproduce", "ternary-table2", "--row", "logg", "--out", str(tmp_path)])
        == 2
    )
    assert "nearest: 'log'" in one_sentence(capsys)
    assert main(["reproduce"]) == 2
    assert "--list" in one_sentence(capsys)


@pytest.mark.parametrize(
    "flags", [["--row", "log"], ["--seed", "3"], ["--validate"], ["--png"]]
)
@pytest.mark.parametrize("experiment", ["ternary-fig4", "lut-table3"])
def test_a_flag_that_an_experiment_has_no_use_for_is_refused(
    experiment, flags, tmp_path, capsys
):
    assert (
        main(
            ["reproduce", experiment, "--smoke", "--out", str(tmp_path / "out"), *flags]
        )
        == 2
    )
    assert (
        f"{flags[0]} is for experiments that train their rows; leave it out"
        in one_sentence(capsys)
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (["compress", "digits-cnn"], "Missing option '--data'; `tersify compress -h`"),
        (["inspect"], "Missing argument"),
        (["compress", "--no-such-flag"], "--no-such-flag"),
        (["compres"], "compres"),
        (["demo", "--seed", "x"], "'--seed'"),
    ],
)
def test_a_missing_or_unknown_option_is_told_in_one_sentence(command, wanted, capsys):
    assert main(command) == 2
    assert wanted in one_sentence(capsys)


def test_help_and_version_are_no_mistakes(capsys):
    for arguments in ([], ["--help"], ["--version"], ["inspect", "-h"]):
        assert main(arguments) == 0
        assert "tersify" in capsys.readouterr().out


def test_names_in_a_file_neither_style_the_table_nor_steer_the_terminal(
    tmp_path, capsys
):
    import torch

    import tersify

    path = tmp_path / "net.terse"
    tersify.save(
        {"[/b]w": torch.zeros(2), "\x1b]0;owned\x07\x9b31m\u202ev": torch.zeros(2)},
        path,
    )
    for flags in ([], ["--json"]):
        assert main(["inspect", str(path), *flags]) == 0
        printed = capsys.readouterr().out
        assert "[/b]w" in printed
        assert not set(printed) & set("\x1b\x07\x9b\u202e")
    assert main(["eval", str(path), "--data", "digits", "--target", "digits-cnn"]) == 2
    assert "\x1b" not in one_sentence(capsys)


@pytest.mark.parametrize(
    "command", [["shrink"], ["export", "onnx"], ["export", "safetensors"]]
)
def test_a_file_that_is_there_is_written_over_only_on_request(
    command, tmp_path, capsys
):
    import tersify
    from tersify.lab import network

    path, out = tmp_path / "net.terse", tmp_path / "out.file"
    metadata = {
        "target": {"name": "digits-cnn", "options": {"width": 0.25}},
        "input": [1, 8, 8],
    }
    tersify.save(
        tersify.CompressedModel(
            network("digits-cnn", width=0.25).state_dict(), metadata=metadata
        ),
        path,
    )
    out.write_text("precious")
    assert main([*command, str(path), "--out", str(out)]) == 2
    sentence = one_sentence(capsys)
    assert f"{out} is there already" in sentence
    assert "--overwrite" in sentence
    assert out.read_text() == "precious"
    assert main([*command, str(path), "--out", str(out), "--overwrite"]) == 0
    assert out.read_bytes() != b"precious"
    assert main([*command, str(path), "--out", str(path), "--overwrite"]) == 2
    assert "--out is the file itself" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (
            ["--shape", "3,8,8"],
            ["DigitsCnn does not take an input of 1×3×8×8", "give one of the shape"],
        ),
        (["--threads", "100000"], ["threads must be 1..", "got 100000"]),
    ],
)
def test_bench_explains_what_cannot_be_timed(flags, wanted, tmp_path, capsys):
    import tersify
    from tersify.lab import network

    path = tmp_path / "net.terse"
    metadata = {
        "target": {"name": "digits-cnn", "options": {"width": 0.25}},
        "input": [1, 8, 8],
    }
    tersify.save(
        tersify.CompressedModel(
            network("digits-cnn", width=0.25).state_dict(), metadata=metadata
        ),
        path,
    )
    assert main(["bench", str(path), *flags]) == 2
    sentence = one_sentence(capsys)
    assert all(part in sentence for part in wanted), sentence


@pytest.mark.parametrize("command", ["compress", "eval", "allocate"])
def test_help_names_every_data_set(command, capsys):
    from tersify.lab.data import _LOADERS

    assert main([command, "--help"]) == 0
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name in _LOADERS:
        assert f"{name}," in told


def test_the_most_memory_a_file_may_take_can_be_lowered(tmp_path, capsys):
    import tersify
    from tersify.lab import network

    path = tmp_path / "net.terse"
    metadata = {"target": {"name": "digits-cnn", "options": {"width": 0.25}}}
    tersify.save(
        tersify.CompressedModel(
            network("digits-cnn", width=0.25).state_dict(), metadata=metadata
        ),
        path,
    )
    limit = ["--max-decoded-bytes", "1000"]
    out = ["--out", str(tmp_path / "other")]
    for command in (
        ["inspect", str(path)],
        ["eval", str(path), "--data", "digits"],
        ["bench", str(path)],
        ["shrink", str(path), *out],
        ["export", "safetensors", str(path), *out],
    ):
        assert main([*command, *limit]) == 2
        assert "max_decoded_bytes allows 1000" in one_sentence(capsys)
    assert (
        compress(
            tmp_path / "out",
            weights=str(path),
            option="width=0.25",
            max_decoded_bytes="1000",
        )
        == 2
    )
    assert "max_decoded_bytes allows 1000" in one_sentence(capsys)
