"""A data set that the user's own function makes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tersify.lab.data.stream import stream
from tersify.lab.data.types import Data, Split
from tersify.userfile import call_function

RULE = (
    "return a tersify.lab.Data, or ((images, labels), (images, labels)) for training and test, or two DataLoaders "
    "or Datasets"
)


def user_data(text: str) -> Data:
    """`file.py:function`; without a Data of its own, classes, mean and std come from
    the training images.
    """
    made = call_function(text)
    if isinstance(made, Data):
        return made
    wrong = ValueError(f"{text!r} returned a {type(made).__name__}; it must {RULE}")
    if not _is_pair(made):
        raise wrong
    # Data that are read in batches never lie in memory whole.
    if all(isinstance(part, (DataLoader, Dataset)) for part in made):
        return stream(*made, name=text)
    if not all(isinstance(part, Split) or _is_pair(part) for part in made):
        raise wrong
    train, test = (part if isinstance(part, Split) else Split(*part) for part in made)
    mean, std = statistics(train.images)
    classes = int(torch.maximum(train.labels.max(), test.labels.max())) + 1
    return Data(name=text, train=train, test=test, classes=classes, mean=mean, std=std)


def statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and spread per channel of images in 0..1; a channel that never changes
    counts as spread 1.
    """
    # (channels, all else), in double precision: float32 sums of many bytes lose digits.
    channels = images.transpose(0, 1).flatten(1).to(torch.float64)
    if images.dtype == torch.uint8:
        channels = channels / 255.0
    std = channels.std(1, correction=0)
    return tuple(channels.mean(1).tolist()), tuple(
        torch.where(std > 0, std, 1.0).tolist()
    )


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2
