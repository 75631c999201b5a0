"""TensorBoard is written to where it was asked for, and nowhere else."""

import pytest

from tersify.lab.trainer import tensorboard_log
from tersify.lab.trainer.tensorboard_log import Board


@pytest.fixture
def writers(monkeypatch):
    made = []

    class Writer:
        def __init__(self, path):
            self.path, self.scalars, self.closed = path, [], False
            made.append(self)

        def add_scalar(self, *scalar):
            self.scalars.append(scalar)

        def close(self):
            self.closed = True

    monkeypatch.setattr(tensorboard_log, "_summary_writer", lambda: Writer)
    return made


def test_every_figure_of_an_epoch_is_a_scalar_at_that_epoch(writers, tmp_path):
    with Board(tmp_path, enabled=True) as open_board:
        open_board.add({"epoch": 3, "loss": 0.5, "accuracy": 90.0})
        assert not writers[0].closed
    (writer,) = writers
    assert (writer.path, writer.closed) == (str(tmp_path), True)
    assert writer.scalars == [("loss", 0.5, 3), ("accuracy", 90.0, 3)]


def test_a_board_that_nobody_asked_for_writes_nothing(writers, tmp_path):
    with Board(tmp_path, enabled=False) as open_board:
        open_board.add({"epoch": 3, "loss": 0.5})
    assert not writers
