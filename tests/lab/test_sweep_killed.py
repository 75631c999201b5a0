"""A sweep that is killed loses no trial and repeats none."""

import random
import signal
import time

import pytest
from sweep_files import finished, read_results, start_sweep, write_sweep


def kill_and_resume(folder, trials, kills, most_seconds):
    """Start, kill with SIGKILL at random moments after the first trial, resume to the
    end.
    """
    file, out, chance = (
        write_sweep(folder, trials=trials),
        folder / "out",
        random.Random(7),
    )
    before = {}
    for _ in range(kills):
        process = start_sweep(file, out, *(["--resume"] if before else []))
        while process.poll() is None and not (out / "trials").is_dir():
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, most_seconds))
        while process.poll() is None and len(before) == len(finished(out)):
            time.sleep(0.02)
        time.sleep(chance.uniform(0.0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        after = finished(out)
        assert all(after[number] == told for number, told in before.items())
        before = after
    process = start_sweep(file, out, "--resume")
    output = process.communicate(timeout=600)[0]
    assert process.returncode == 0, output
    return out, before, output


def check(out, before, trials):
    after = finished(out)
    assert sorted(after) == list(range(trials))
    assert all(after[number] == told for number, told in before.items())
    results = read_results(out)
    assert [t["number"] for t in results["trials"]] == list(range(trials))
    assert {t["state"] for t in results["trials"]} == {"complete"}
    assert len({str(t["params"]) for t in results["trials"]}) == trials
    assert len(list((out / "trials").glob("*/metrics.json"))) == trials


@pytest.mark.long
def test_a_killed_sweep_goes_on_and_repeats_no_finished_trial(tmp_path):
    # A busy machine may let all trials end before the kill: then more of them are begun.
    for trials in (6, 24, 96):
        folder = tmp_path / str(trials)
        folder.mkdir()
        out, before, output = kill_and_resume(folder, trials, kills=1, most_seconds=0.0)
        check(out, before, trials)
        if len(before) < trials:
            break
    assert 0 < len(before) < trials
    assert f"{len(before)} of {trials} trials are done already" in output


@pytest.mark.slow
def test_forty_trials_killed_three_times_are_forty_trials(tmp_path):
    out, before, _ = kill_and_resume(tmp_path, trials=40, kills=3, most_seconds=4.0)
    check(out, before, 40)
