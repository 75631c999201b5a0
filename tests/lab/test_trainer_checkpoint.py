"""A checkpoint is data: reading one runs nothing."""

from pathlib import Path

import pytest
import torch

from tersify.lab.trainer.checkpoint import read_checkpoint, snapshot

PARTS = {
    "epoch": 1,
    "history": [],
    "model": {},
    "optimizer": {},
    "session": {},
    "average": {},
}


class Touches:
    """What a pickle of it does when it is read the careless way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_checkpoint_that_would_run_something_is_refused_before_it_does(tmp_path):
    torch.save(
        {**PARTS, "extra": Touches(tmp_path / "it ran")}, tmp_path / "checkpoint.pt"
    )
    with pytest.raises(ValueError, match="is no checkpoint of a training run"):
        read_checkpoint(tmp_path / "checkpoint.pt")
    assert not (tmp_path / "it ran").exists()


def test_a_checkpoint_must_hold_all_its_parts_in_their_kinds(tmp_path):
    torch.save(PARTS, tmp_path / "whole.pt")
    assert read_checkpoint(tmp_path / "whole.pt") == PARTS
    for part, wrong in (("epoch", "1"), ("history", {}), ("model", [])):
        torch.save({**PARTS, part: wrong}, tmp_path / "wrong.pt")
        with pytest.raises(ValueError, match="it must hold epoch, history, model"):
            read_checkpoint(tmp_path / "wrong.pt")


def test_a_snapshot_shares_no_memory_with_what_goes_on_training():
    live = torch.zeros(3)
    taken = snapshot({"a": [live, (live, 2)]})
    live += 1
    assert taken["a"][0].tolist() == taken["a"][1][0].tolist() == [0, 0, 0]
    assert taken["a"][1][1] == 2
