"""Training settings that fit the size of the data and the length of the run, where
nobody gave them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tersify.checks import is_number_of
from tersify.lab.trainer.config import TrainConfig

# How a dense network is trained from scratch. The warm-up is a twentieth of the run,
# however long that is. The decay makes what is not needed small, so that pruning by
# magnitude finds it.
DENSE: Mapping[str, Any] = {
    "optimizer": "adamw",
    "lr": 5e-3,
    "lr_size": 0.06,
    "weight_decay": 0.3,
    "schedule": "cosine",
    "warmup_epochs": 5,
    "over": 100,
}
WRITTEN_FOR = 256  # the batch size that a rate belongs to, where a recipe names none
SMALLEST_BATCH, LARGEST_BATCH = 16, 256
STEPS = 1300  # of a run whose length nobody gave, within so many epochs:
FEWEST_EPOCHS, MOST_EPOCHS = 10, 60


def fitted(table: Mapping[str, Any], samples: int, **given: Any) -> TrainConfig:
    """The settings of a recipe for so many training samples; what is `given` and not
    None stays as it is.

    A batch is about the square root of the samples. A rate of SGD goes with the square
    root of the batch, so that the steps of a small batch, which are noisier and more,
    are shorter; Adam and Adadelta measure their steps themselves.
    """
    given = {key: value for key, value in given.items() if value is not None}
    settings = dict(table) | given
    # A rate that the user gave is meant as it is, whatever the size of the weights.
    if "lr" in given:
        settings.pop("lr_size", None)
    batch = settings.setdefault("batch_size", fitting_batch(samples))
    settings.setdefault("epochs", fitting_epochs(samples, batch))
    # TrainConfig tells what is wrong with another
    if settings.get("optimizer") == "sgd" and isinstance(batch, int):
        # A batch cannot exceed the data; the feed makes it as large as the split then.
        factor = math.sqrt(min(batch, samples) / table.get("batch_size", WRITTEN_FOR))
        for key in ("lr", "rates", "final_lr"):
            if key in table and key not in given:
                settings[key] = _times(table[key], factor)
    return TrainConfig.from_mapping(settings)


def fitting_batch(samples: int) -> int:
    """The power of two nearest to the square root of the samples."""
    return min(
        max(2 ** round(math.log2(max(samples, 1)) / 2), SMALLEST_BATCH), LARGEST_BATCH
    )


def fitting_epochs(samples: int, batch: Any) -> int:
    """As many as take a fixed number of steps, within limits."""
    steps_per_epoch = (
        math.ceil(samples / batch) if isinstance(batch, int) and batch > 0 else 1
    )
    return min(max(round(STEPS / steps_per_epoch), FEWEST_EPOCHS), MOST_EPOCHS)


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, (list, tuple)):
        return [_times(each, factor) for each in value]
    return value * factor if is_number_of(value, (int, float)) else value
