"""A pass over the text that was stopped goes on behind its last batch, and ends as one
that was not.
"""

from __future__ import annotations

import itertools
import time

import pytest
import torch
from small_language_model import calibration, text, trained

import tersify
from tersify.calibration import Calibration
from tersify.compensated import Compensation, compensate_, next_token_loss, partial

PLAIN = Compensation(bits=2.5)


class StopError(Exception):
    pass


def stopped(folder, *, after, batches=None, **given):
    """A run that stops right behind a batch."""

    def tell(what: str, done: int, all_of_it: int) -> None:
        if (what, done) == ("statistics", after):
            raise StopError

    with pytest.raises(StopError):
        compensate_(
            trained(),
            PLAIN,
            calibration=batches or calibration(64),
            folder=folder,
            tell=tell,
            **given,
        )


def resumed(folder, batches=None, **given):
    """The finished network, and how many batches it looked at."""
    model, looked_at = trained(), []
    model.register_forward_pre_hook(lambda *_: looked_at.append(1))
    compensate_(
        model, PLAIN, calibration=batches or calibration(64), folder=folder, **given
    )
    return model.state_dict(), len(looked_at)


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def whole():
    model = trained()
    compensate_(model, PLAIN, calibration=calibration(64))
    return model.state_dict()


@pytest.fixture
def always(monkeypatch):
    """Sums are kept after every batch."""
    monkeypatch.setattr(partial, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(partial, "MOST_OF_TIME", 1e9)


def test_a_pass_that_was_stopped_goes_on_behind_its_last_batch(tmp_path, whole):
    stopped(tmp_path, after=3)
    assert (tmp_path / "statistics.partial").exists()
    found, looked_at = resumed(tmp_path)
    assert looked_at == 8 - 3
    assert same(found, whole)
    assert not (tmp_path / "statistics.partial").exists()


def test_a_pass_that_was_stopped_twice_ends_the_same(tmp_path, whole):
    stopped(tmp_path, after=3)
    stopped(tmp_path, after=6)
    found, looked_at = resumed(tmp_path)
    assert looked_at == 2
    assert same(found, whole)


def test_half_a_batch_is_not_kept(tmp_path, whole, always):
    model, times = trained(), itertools.count(1)

    def stop(gradient):
        if next(times) == 5:
            raise StopError
        return gradient

    model.blocks[0].up.register_forward_hook(
        lambda module, given, out: out.register_hook(stop) and None
    )
    with pytest.raises(StopError):
        compensate_(model, PLAIN, calibration=calibration(64), folder=tmp_path)
    found, looked_at = resumed(tmp_path)
    assert looked_at == 8 - 4
    assert same(found, whole)


def test_batches_of_another_text_begin_anew(tmp_path):
    other = Calibration(
        [(ids, ids) for ids in text(64, 7).split(8)], next_token_loss
    )  # fmt: skip
    stopped(tmp_path, after=3)
    found, looked_at = resumed(tmp_path, other)
    assert looked_at == 8
    alone, _ = resumed(tmp_path / "alone", other)
    assert same(found, alone)


def test_fewer_batches_than_were_kept_begin_anew(tmp_path):
    stopped(tmp_path, after=5)
    _, looked_at = resumed(tmp_path, calibration(32))
    assert looked_at == 4


def test_sums_in_bf16_do_not_go_on_in_floats(tmp_path):
    stopped(tmp_path, after=3, bf16=True)
    assert resumed(tmp_path)[1] == 8


def test_damaged_sums_begin_anew(tmp_path, whole):
    stopped(tmp_path, after=3)
    file = tmp_path / "statistics.partial"
    file.write_bytes(file.read_bytes()[:1000])
    found, looked_at = resumed(tmp_path)
    assert looked_at == 8
    assert same(found, whole)


def test_a_run_that_was_stopped_between_matrices_needs_no_pass_for_the_others(
    tmp_path, whole, always, monkeypatch
):
    from tersify.compensated import compensation as walk

    spread_of, times = walk.spread_of, itertools.count(1)

    def stop(*given):
        if next(times) == 4:
            raise StopError
        return spread_of(*given)

    monkeypatch.setattr(walk, "spread_of", stop)
    with pytest.raises(StopError):
        compensate_(trained(), PLAIN, calibration=calibration(64), folder=tmp_path)
    found, looked_at = resumed(tmp_path)
    assert looked_at == 0
    assert same(found, whole)


def test_keeping_waits_until_it_is_a_small_part_of_the_time(tmp_path, monkeypatch):
    now = iter([0.0, 0.5, 1.5, 10.0, 14.0, 90.0, 94.5])
    monkeypatch.setattr(partial.time, "monotonic", lambda: next(now))
    sums = partial.PartialSums(tmp_path / "sums")
    assert not sums.is_due()
    assert sums.is_due()
    sums.keep({}, partial.Batches(), bf16=False)  # takes 4 seconds
    assert not sums.is_due()
    assert sums.is_due()


def test_a_folder_goes_on_with_another_number_of_threads(tmp_path):
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            model = torch.nn.Sequential(torch.nn.Linear(512, 700))
            with torch.no_grad():
                grid = torch.arange(512.0 * 700).sin().view(700, 512)
                model[0].weight.copy_(grid * torch.logspace(-6, 6, 700)[:, None])
            batches = [(torch.ones(2, 512), torch.zeros(2, dtype=torch.long))]
            compensate_(model, PLAIN, calibration=batches, folder=tmp_path)
    finally:
        torch.set_num_threads(threads)


def test_the_same_run_writes_the_same_bytes_at_another_time(tmp_path, monkeypatch):
    dates = (f"2026-11-{day:02}T10:00:00Z" for day in itertools.count(1))
    monkeypatch.setattr(time, "strftime", lambda *given: next(dates))
    for name in ("a", "b"):
        packed = compensate_(trained(), PLAIN, calibration=calibration(16))
        tersify.save(packed, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
