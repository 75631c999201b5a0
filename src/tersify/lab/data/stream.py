"""Data that come in batches, from a DataLoader or a Dataset: they need not fit in
memory, nor have a known length.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tersify.checks import check_whole
from tersify.lab.data.types import Data, Split

# samples that are kept, for calibration, examples and batch norms' statistics
SAMPLE = 4096
SAMPLE_NUMBERS = 1 << 26  # in all of them together
TEST_BATCH = 256
RULE = "a batch must be a pair (inputs, labels) of tensors with one label for each input, or for each token"


@dataclass(frozen=True, eq=False)
class Stream(Split):
    """A split that is read batch by batch; `images` and `labels` are a sample of it,
    and `count` is how many there are.

    `source` is a Dataset, or an iterable of batches such as a DataLoader. `steps` is
    the number of batches in an epoch, where that is not the number in the source.
    """

    source: Any = None
    count: int = 0
    steps: int | None = None

    @property
    def samples(self) -> int:
        return self.count

    def batches(self, batch_size: int, *, shuffle: bool = False) -> Iterable[Any]:
        """What is iterated: a Dataset gets batches of this size, all else has its own."""
        return loader_of(self.source, batch_size, shuffle=shuffle)


def stream(
    train: Any,
    test: Any,
    *,
    classes: int | None = None,
    steps_per_epoch: int | None = None,
    name: str = "stream",
) -> Data:
    """Training and test data for the trainer: each a DataLoader, a Dataset, or another
    iterable of (inputs, labels).

    Inputs are used as they come (bytes are divided by 255). `steps_per_epoch` cuts the
    training data into epochs where their length is not known, or is to be another; the
    next epoch goes on where the one before it stopped. Without `classes` there are as
    many as the labels of the test set and of a sample of the training set tell.
    """
    for what, given in (("training", train), ("test", test)):
        # An iterator would be used up after the first pass.
        if isinstance(given, Iterator) or not isinstance(given, (Iterable, Dataset)):
            raise ValueError(
                f"the {what} data are a {type(given).__name__}, and must be a Dataset, a DataLoader or an object that "
                "starts anew in every for loop: they are read more than once"
            )
    if steps_per_epoch is not None:
        check_whole("steps_per_epoch", steps_per_epoch, low=1)
    elif length_of(train) is None:
        raise ValueError(
            "the length of the training data is not known; give steps_per_epoch, the batches of an epoch"
        )
    seen, tested = _sampled(train, whole=False), _sampled(test, whole=True)
    count = length_of(train) if steps_per_epoch is None else steps_per_epoch
    # Batches are counted then, so the samples are batches times the first batch's size.
    if steps_per_epoch is not None or not isinstance(train, Dataset):
        count = (count or 1) * seen.batch
    made = max(seen.highest, tested.highest) + 1 if classes is None else classes
    return Data(
        name=name,
        train=Stream(
            seen.images,
            seen.labels,
            source=train,
            count=count or 1,
            steps=steps_per_epoch,
        ),
        test=Stream(tested.images, tested.labels, source=test, count=tested.count),
        classes=made,
        mean=(0.0,),
        std=(1.0,),
    )


def length_of(source: Any) -> int | None:
    """Samples of a Dataset, batches of another source; None where it does not say."""
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        return None


def loader_of(source: Any, batch_size: int, *, shuffle: bool) -> Iterable[Any]:
    if not isinstance(source, Dataset):
        return source
    shuffled = shuffle and not isinstance(source, IterableDataset)
    return DataLoader(source, batch_size=batch_size, shuffle=shuffled)


def checked_batch(batch: Any) -> tuple[Tensor, Tensor]:
    """A pair of tensors that the trainer can use; bytes are divided by 255."""
    parts = batch if isinstance(batch, (tuple, list)) else [batch]
    if len(parts) != 2 or not all(isinstance(part, Tensor) for part in parts):
        raise ValueError(
            f"{RULE}; got {', '.join(type(part).__name__ for part in parts)}"
        )
    inputs, labels = parts
    if inputs.dtype == torch.uint8:
        inputs = inputs.to(torch.float32) / 255.0
    elif inputs.is_floating_point():
        inputs = inputs.to(torch.float32)
    return inputs, labels.to(torch.int64) if not labels.is_floating_point() else labels


@contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """Inside, every generator starts at the seed; afterwards each goes on where it was."""
    # A user's data set may draw from any of the three.
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


@dataclass(frozen=True)
class _Sample:
    images: Tensor
    labels: Tensor
    batch: int
    count: int
    highest: int


def _sampled(source: Any, *, whole: bool) -> _Sample:
    """The first samples, the same in every run; with `whole` all are read, and counted."""
    kept: list[tuple[Tensor, Tensor]] = []
    count, highest, full = 0, 0, False
    with drawing_from(0):
        for batch in loader_of(source, TEST_BATCH, shuffle=not whole):
            images, labels = checked_batch(batch)
            count += len(labels)
            highest = max(highest, int(labels.max()) if labels.numel() else 0)
            # Batches of other sizes, such as texts of other lengths, cannot be joined
            # in one tensor.
            if not full and (not kept or images.shape[1:] == kept[0][0].shape[1:]):
                kept.append((images, labels))
            held = sum(len(part) for _, part in kept)
            full = (
                full
                or held >= SAMPLE
                or (held + len(labels)) * images[0].numel() > SAMPLE_NUMBERS
            )
            if full and not whole:
                break
    if not kept:
        raise ValueError("the data hold no batch; give at least one")
    images, labels = map(torch.cat, zip(*kept, strict=True))
    return _Sample(images, labels, len(kept[0][1]), count, highest)
