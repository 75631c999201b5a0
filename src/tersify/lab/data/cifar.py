"""CIFAR-10 and CIFAR-100 from their official files, binary or python layout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tersify.lab.data.cifar_pickle import read_batch
from tersify.lab.data.roots import first_folder, read_exactly
from tersify.lab.data.types import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Augmentation,
    Data,
    Split,
)

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """The files of one CIFAR. A binary record starts with `label_bytes` labels; the
    last one counts.
    """

    classes: int
    label_bytes: int
    label_key: str
    binary: str
    python: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    train_batch: int
    test_batch: int = 10_000
    names: tuple[str, ...] = ()  # of the classes


CIFAR10 = Layout(
    classes=10,
    label_bytes=1,
    label_key="labels",
    binary="cifar-10-batches-bin",
    python="cifar-10-batches-py",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test=("test_batch",),
    train_batch=10_000,
    names=(
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ),
)
CIFAR100 = Layout(
    classes=100,
    label_bytes=2,
    label_key="fine_labels",
    binary="cifar-100-binary",
    python="cifar-100-python",
    train=("train",),
    test=("test",),
    train_batch=50_000,
)


def cifar(name: str, layout: Layout, root: Path) -> Data:
    folder = first_folder(root, (layout.binary, layout.python), name)
    return Data(
        name=name,
        train=_split(folder, layout, layout.train, layout.train_batch),
        test=_split(folder, layout, layout.test, layout.test_batch),
        classes=layout.classes,
        # Both the public CIFAR ResNets and the network of paper 1 were trained with
        # ImageNet's statistics.
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        augmentation=Augmentation(crop_padding=4, flip=True),
        class_names=layout.names,
    )


def _split(folder: Path, layout: Layout, files: tuple[str, ...], records: int) -> Split:
    images, labels = [], []
    for file in files:
        if folder.name == layout.binary:
            path = folder / f"{file}.bin"
            pixels, found = _read_binary(path, layout.label_bytes, records)
        else:
            path = folder / file
            pixels, found = read_batch(path, layout.label_key, records, PIXELS)
        wrong = np.flatnonzero((found < 0) | (found >= layout.classes))
        if wrong.size:
            raise ValueError(
                f"label {found[wrong[0]]} of record {wrong[0]} in {str(path)!r} must be "
                f"0..{layout.classes - 1}: the file is damaged; fetch it again"
            )
        images.append(pixels)
        labels.append(found)
    return Split(
        torch.from_numpy(np.concatenate(images)).view(-1, 3, 32, 32),
        torch.from_numpy(np.concatenate(labels)),
    )


def _read_binary(
    path: Path, label_bytes: int, records: int
) -> tuple[np.ndarray, np.ndarray]:
    record = label_bytes + PIXELS
    table = np.frombuffer(read_exactly(path, records * record), dtype=np.uint8).reshape(
        records, record
    )
    return table[:, label_bytes:], table[:, label_bytes - 1].astype(np.int64)
