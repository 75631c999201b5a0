"""Data from DataLoaders and Datasets, in streams that need not fit in memory or have a
length.
"""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from tersify.cli import main
from tersify.lab import dataset, network, stream
from tersify.lab.data import normalize
from tersify.lab.trainer import Display, TrainConfig, train
from tersify.lab.trainer.loop import Loop
from tersify.recipe import Recipe

DIGITS = dataset("digits")
CONFIG = {"epochs": 3, "batch_size": 64, "lr": 0.01, "device": "cpu", "amp": False}


def pairs(split, most=600):
    return normalize(split.images[:most], DIGITS), split.labels[:most]


class Lines(IterableDataset):
    """Like a file that is read from front to back; nobody knows how long it is."""

    def __init__(self, split=DIGITS.train):
        self.images, self.labels = pairs(split)

    def __iter__(self):
        yield from zip(self.images, self.labels, strict=True)


class Counting(Dataset):
    """Each sample is made when it is asked for; the images together would take a
    hundred gigabytes.
    """

    def __init__(self, size=2_000_000):
        self.size, self.asked = size, 0

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.asked += 1
        return torch.full((1, 128, 128), (index % 2) - 0.5), index % 2


def small():
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.LazyLinear(10))


SOURCES = {
    "a loader": lambda: (
        DataLoader(TensorDataset(*pairs(DIGITS.train)), 64, shuffle=True),
        10,
    ),
    "a loader with a short last batch": lambda: (
        DataLoader(TensorDataset(*pairs(DIGITS.train)), 70),
        9,
    ),
    "a data set": lambda: (TensorDataset(*pairs(DIGITS.train)), 10),
    "lines": lambda: (DataLoader(Lines(), 64), 7),
    "lines without batches": lambda: (Lines(), 7),
    "a list of batches": lambda: (
        list(DataLoader(TensorDataset(*pairs(DIGITS.train)), 64)),
        10,
    ),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_the_trainer_takes_it_and_a_broken_run_ends_like_an_unbroken_one(
    kind, tmp_path
):
    source, steps = SOURCES[kind]()
    told = {"steps_per_epoch": steps} if "lines" in kind else {}
    data = stream(source, TensorDataset(*pairs(DIGITS.test)), **told)
    assert data.classes == 10
    assert data.test.samples == len(pairs(DIGITS.test)[1])

    def loop():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Dropout(0.1), network("digits-cnn", width=0.25))
        return Loop(model, data, TrainConfig(**CONFIG), Recipe.load("ternary-target"))

    whole = loop()
    assert whole.feed.steps == steps
    rows = [whole.run_epoch(epoch, Display()) for epoch in (1, 2, 3)]
    assert 0 < rows[-1]["train_accuracy"] <= 100
    broken = loop()
    broken.run_epoch(1, Display())
    broken.run_epoch(2, Display())
    resumed = loop()
    resumed.load_state_dict(broken.state_dict())
    assert resumed.run_epoch(3, Display())["loss"] == rows[-1]["loss"]
    theirs = whole.pack().state_dict()
    assert all(
        torch.equal(tensor, theirs[name])
        for name, tensor in resumed.pack().state_dict().items()
    )


def test_epochs_of_another_length_go_on_where_the_last_one_stopped():
    seen = []

    class Numbers(IterableDataset):
        def __iter__(self):
            yield from ((torch.full((1, 2, 2), float(i)), i % 2) for i in range(10))

    data = stream(DataLoader(Numbers(), 2), DataLoader(Numbers(), 2), steps_per_epoch=3)
    loop = Loop(
        nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), data, TrainConfig(**CONFIG), None
    )
    for epoch in (1, 2, 3):
        seen.append([int(images[0, 0, 0, 0]) for images, _ in loop.feed.batches(epoch)])
    assert seen == [[0, 2, 4], [6, 8, 0], [2, 4, 6]]


def test_a_whole_run_leaves_a_directory_with_a_file_that_knows_its_network(tmp_path):
    data = stream(
        DataLoader(TensorDataset(*pairs(DIGITS.train)), 64, shuffle=True),
        TensorDataset(*pairs(DIGITS.test)),
    )
    metrics = train(
        small(),
        data,
        TrainConfig(**CONFIG),
        out=tmp_path / "run",
        recipe=Recipe.load("uniform-8"),
    )
    assert metrics["accuracy"] > 60
    import tersify

    loaded = tersify.load(tmp_path / "run" / "model.terse")
    images, labels = pairs(DIGITS.test)
    assert 100 * float(
        (loaded(images).argmax(1) == labels).float().mean()
    ) == pytest.approx(metrics["accuracy"])


def test_data_larger_than_memory_are_read_a_batch_at_a_time():
    source = Counting()
    data = stream(source, Counting(300), steps_per_epoch=4)
    model = nn.Sequential(nn.AvgPool2d(32), nn.Flatten(), nn.Linear(16, 2))
    loop = Loop(model, data, TrainConfig(**CONFIG | {"batch_size": 8}), None)
    before = source.asked
    row = loop.run_epoch(1, Display())
    assert source.asked - before <= 4 * 8 + 8
    assert before < 5000
    assert row["accuracy"] >= 50


USERS = """
from torch.utils.data import DataLoader, TensorDataset
from tersify.lab import dataset, normalize

def loaders():
    digits = dataset("digits")
    sets = [TensorDataset(normalize(part.images, digits), part.labels) for part in (digits.train, digits.test)]
    return DataLoader(sets[0], 32, shuffle=True), DataLoader(sets[1], 500)

def one():
    return loaders()[0]
"""


def test_the_command_line_takes_loaders_of_ones_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(USERS)
    command = (
        "compress digits-cnn --option width=0.5 --data mine.py:loaders "
        "--recipe ternary-target --epochs 4 --out run"
    )
    assert main([*command.split(), "--no-dense-twin"]) == 0
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["accuracy"] > 85
    capsys.readouterr()
    assert main(["eval", "run/model.terse", "--data", "mine.py:loaders"]) == 0
    assert f"on the {len(DIGITS.test):,} test images" in capsys.readouterr().out
    assert main(["eval", "run/model.terse", "--data", "mine.py:one"]) == 2
    assert "it must return a tersify.lab.Data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "settings", "message"),
    [
        (
            iter([1]),
            {},
            "the training data are a list_iterator.*they are read more than once",
        ),
        (3, {}, "the training data are a int"),
        (Lines(), {}, "length of the training data is not known; give steps_per_epoch"),
        ([], {}, "the data hold no batch"),
        ([1], {}, "a batch must be a pair .*got int"),
        ([(torch.ones(2, 3), "ab")], {}, "a batch must be a pair .*got Tensor, str"),
        ([(torch.ones(2, 3), torch.zeros(3))], {}, "labels must be int64"),
        (Lines(), {"steps_per_epoch": 0}, "steps_per_epoch must be"),
    ],
)
def test_mistakes_are_told_in_one_sentence(given, settings, message):
    with pytest.raises(ValueError, match=message):
        stream(given, given, **settings)


def test_a_label_beyond_the_classes_is_told_when_it_comes():
    images, labels = pairs(DIGITS.train)
    data = stream(
        TensorDataset(images, labels), TensorDataset(images, labels), classes=10
    )
    object.__setattr__(data, "classes", 5)
    loop = Loop(small(), data, TrainConfig(**CONFIG), None)
    with pytest.raises(
        ValueError, match=r"must be 0\.\.4, got 0\.\.9; say how many classes there are"
    ):
        loop.run_epoch(1, Display())


def test_a_stream_cannot_be_held_out():
    data = stream(Counting(20_000), Counting(10))
    with pytest.raises(
        ValueError, match="comes in batches, of which no part can be held out"
    ):
        data.for_choosing()
