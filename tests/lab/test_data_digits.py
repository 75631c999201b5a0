import numpy as np
import pytest
import torch

from tersify.lab import dataset, normalize
from tersify.lab.data.digits import raw_digits


def test_the_shipped_digits_are_those_of_scikit_learn() -> None:
    theirs = pytest.importorskip("sklearn.datasets").load_digits()
    images, labels = raw_digits()
    assert np.array_equal(images, theirs.images)
    assert np.array_equal(labels, theirs.target)


def test_a_quarter_of_every_digit_is_for_testing() -> None:
    digits = dataset("digits")
    train, test = (
        torch.bincount(digits.train.labels),
        torch.bincount(digits.test.labels),
    )
    assert (len(digits.train), len(digits.test)) == (1352, 445)
    assert torch.equal(test, (train + test) // 4)


def test_every_digit_is_in_one_part_only() -> None:
    digits = dataset("digits")
    found = sorted(
        tuple(row.tolist())
        for part in (digits.train, digits.test)
        for row in part.images.flatten(1)
    )
    stored = sorted(
        tuple(row.tolist())
        for row in raw_digits()[0].reshape(-1, 64).astype(np.float32) / 16
    )
    assert found == stored


def test_normalized_digits_have_zero_mean_and_unit_spread() -> None:
    digits = dataset("digits")
    images = normalize(digits.train.images, digits)
    assert digits.shape == (1, 8, 8)
    assert abs(images.mean().item()) < 0.01
    assert images.std().item() == pytest.approx(1.0, abs=0.01)
