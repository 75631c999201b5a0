"""Training on images that are laid over each other."""

import pytest
import torch
import torch.nn.functional as F

from tersify.lab import dataset, network
from tersify.lab.data import Data, Split
from tersify.lab.trainer import TrainConfig, train
from tersify.lab.trainer.mixup import mix
from tersify.lab.trainer.objective import Objective


def batch(count=64):
    torch.manual_seed(0)
    return torch.randn(count, 1, 4, 4), torch.randint(10, (count,))


def test_a_mixed_image_and_its_target_hold_both_partners_in_the_same_proportion():
    images, labels = batch()
    mixed, targets = mix(images, labels, classes=10, fraction=1.0)
    for i in range(len(images)):
        one, other = images[i], images[-1 - i]
        part = ((mixed[i] - other) * (one - other)).sum() / (one - other).square().sum()
        wanted = part * F.one_hot(labels[i], 10) + (1 - part) * F.one_hot(
            labels[-1 - i], 10
        )
        torch.testing.assert_close(mixed[i], part * one + (1 - part) * other)
        torch.testing.assert_close(targets[i], wanted, atol=1e-5, rtol=0)


def test_the_images_that_are_not_chosen_stay_as_they_are():
    images, labels = batch(2000)
    mixed, targets = mix(images, labels, classes=10, fraction=0.3)
    untouched = (mixed == images).flatten(1).all(1)
    assert 0.65 < untouched.float().mean() < 0.75
    assert torch.equal(targets[untouched], F.one_hot(labels, 10).float()[untouched])


def test_whole_labels_as_probabilities_give_the_same_loss():
    logits, labels = torch.randn(6, 10), torch.arange(6)
    loss = Objective(TrainConfig(epochs=1, label_smoothing=0.1))
    images = torch.zeros(6, 1, 4, 4)
    torch.testing.assert_close(
        loss(images, logits, labels),
        loss(images, logits, F.one_hot(labels, 10).float()),
    )


def test_a_network_learns_from_mixed_images(tmp_path):
    config = TrainConfig(epochs=3, lr=0.01, batch_size=64, mixup=0.5)
    assert (
        train(
            network("digits-cnn", width=0.25), dataset("digits"), config, out=tmp_path
        )["accuracy"]
        > 75
    )


def test_texts_are_refused(tmp_path):
    split = Split(
        torch.ones(8, 5, dtype=torch.int64), torch.zeros(8, dtype=torch.int64)
    )
    texts = Data("words", split, split, classes=2, mean=(0.0,), std=(1.0,))
    with pytest.raises(
        ValueError, match=r"mixup lays images over each other and 'words' holds texts"
    ):
        train(
            torch.nn.Sequential(
                torch.nn.Embedding(4, 3), torch.nn.Flatten(), torch.nn.Linear(15, 2)
            ),
            texts,
            TrainConfig(epochs=1, mixup=0.5),
            out=tmp_path / "out",
        )


def test_a_share_above_one_is_refused():
    with pytest.raises(ValueError, match=r"mixup must be in \[0, 1\], got 1.5"):
        TrainConfig(epochs=1, mixup=1.5)


def test_a_network_with_more_logits_than_there_are_classes_learns_too(tmp_path):
    config = TrainConfig(epochs=1, batch_size=256, mixup=0.5)
    train(
        network("digits-cnn", width=0.25, classes=12),
        dataset("digits"),
        config,
        out=tmp_path,
    )
