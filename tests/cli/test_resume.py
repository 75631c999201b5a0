"""`--resume` goes on with what is there, and says so where nothing is."""

import pytest

from tersify.cli import main

COMPRESS = "compress digits-cnn --data digits --recipe twn --epochs 1 --device cpu"


def sweep_file(folder):
    file = folder / "sweep.toml"
    file.write_text(
        'target = "digits-cnn"\ndata = "digits"\nrecipe = "twn"\nobjectives = ["accuracy"]\ntrials = 1\n'
        '[train]\nepochs = 1\n[space]\n"train.lr" = [0.01]\n'
    )
    return file


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(
    "command", [COMPRESS, "demo --quick", "reproduce tiny --smoke", "sweep {sweep}"]
)
def test_a_folder_in_which_nothing_was_begun_cannot_be_resumed_and_is_left_as_it_is(
    command, there, tmp_path, capsys
):
    out = tmp_path / "out"
    if there:
        out.mkdir()
    words = command.format(sweep=sweep_file(tmp_path)).split()
    assert main([*words, "--out", str(out), "--resume"]) == 2
    captured = capsys.readouterr()
    state = "empty" if there else "not there"
    assert (captured.out, captured.err) == (
        "",
        f"tersify: there is nothing to resume, {out} is {state}; "
        "leave --resume out to begin, or give the --out of what was begun\n",
    )
    assert [*out.iterdir()] == [] if there else not out.exists()


def test_a_process_that_torchrun_started_again_begins_where_nothing_is_there_yet(
    tmp_path, monkeypatch
):
    told = {}

    def run(job, out, **flags):
        told.update(flags)
        raise ValueError("far enough")

    monkeypatch.setattr("tersify.lab.trainer.run_with_twin", run)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    for flags in ([], ["--resume"]):
        told.clear()
        assert main([*COMPRESS.split(), "--out", str(tmp_path / "out"), *flags]) == 2
        assert told["resume"] is True
