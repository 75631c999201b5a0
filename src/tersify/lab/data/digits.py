"""The 8×8 digits that ship with the package."""

from __future__ import annotations

from importlib.resources import as_file, files

import numpy as np
import torch

from tersify.lab.data.types import Augmentation, Data, Split


def digits() -> Data:
    """1,797 images; every fourth of a class, in the file's order, is for testing."""
    images, labels = raw_digits()
    # Counted within each class, so every class gives the same fraction to the test.
    turn = np.zeros(len(labels), dtype=np.int64)
    for digit in range(10):
        own = labels == digit
        turn[own] = np.arange(own.sum())
    test = turn % 4 == 3
    return Data(
        name="digits",
        train=_split(images[~test], labels[~test]),
        test=_split(images[test], labels[test]),
        classes=10,
        mean=(0.305,),
        std=(0.376,),
        augmentation=Augmentation(crop_padding=1),
        class_names=tuple("0123456789"),
    )


def raw_digits() -> tuple[np.ndarray, np.ndarray]:
    """Images (1797, 8, 8) of 0..16 and labels, uint8, in scikit-learn's order."""
    with (
        as_file(files("tersify.lab.data") / "digits.npz") as path,
        np.load(path, allow_pickle=False) as stored,
    ):
        return stored["images"], stored["labels"]


def _split(images: np.ndarray, labels: np.ndarray) -> Split:
    unit = torch.from_numpy(images).to(torch.float32).div_(16.0)
    return Split(unit[:, None], torch.from_numpy(labels).to(torch.int64))
