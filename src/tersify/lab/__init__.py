"""The lab: reference networks, data sets, training, and the papers' experiments."""

from typing import Any

from tersify.lab.data import (
    Augmentation,
    Data,
    Split,
    augment,
    dataset,
    normalize,
    stream,
)
from tersify.lab.metrics import topk_accuracy
from tersify.lab.networks import network, networks
from tersify.lab.seeds import set_seed
from tersify.lab.targets import resolve_target
from tersify.lazy_modules import submodule

__all__ = [
    "Augmentation",
    "Data",
    "Split",
    "augment",
    "dataset",
    "network",
    "networks",
    "normalize",
    "resolve_target",
    "set_seed",
    "stream",
    "topk_accuracy",
]


def __getattr__(name: str) -> Any:
    return submodule(__name__, name)
