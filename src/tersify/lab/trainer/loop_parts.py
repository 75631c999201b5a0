"""What a training loop is made of, from its config: the device, the augmentation, the
optimizer, and the parameters that stay as they are.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import torch
from torch import nn

from tersify.lab.data import Augmentation, Data
from tersify.lab.names import unknown
from tersify.lab.trainer.config import TrainConfig
from tersify.lab.trainer.distributed import (
    local_rank,
)
from tersify.lab.trainer.plain_session import Training

if TYPE_CHECKING:
    pass


def freeze_(model: nn.Module, names: str) -> None:
    """The parameters whose names match the glob are not trained."""
    parameters = dict(model.named_parameters())
    chosen = [name for name in parameters if fnmatchcase(name, names)]
    if not chosen:
        raise ValueError(
            f"freeze matches no parameter of the network, got {names!r}; it has {', '.join(list(parameters)[:3])}, …"
        )
    if len(chosen) == len(parameters):
        raise ValueError(
            f"freeze matches every parameter of the network, got {names!r}; leave some to train"
        )
    for name in chosen:
        parameters[name].requires_grad_(False)


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one; of several ranks on a machine each takes a GPU
    of its own.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    # Rank 0 keeps the plain name, so that one process behaves as it always did.
    if name == "cuda" and local_rank():
        name = f"cuda:{local_rank()}"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {name!r} is not available here; use device 'cpu' or 'auto'"
        )
    return device


def augmentation_of(data: Data, config: TrainConfig) -> Augmentation:
    base = data.augmentation if config.augment else Augmentation()
    known = tuple(vars(base))
    for key, value in config.augmentation.items():
        if key not in known:
            raise unknown("augmentation", key, known)
        # type() and not isinstance: `flip = 1` is a mistake, and `crop_padding = true`
        # as well.
        kind = type(getattr(base, key))
        if type(value) is not kind:
            raise ValueError(
                f"augmentation {key} must be of type {kind.__name__}, got {value!r}"
            )
    wanted = replace(base, **config.augmentation)
    if wanted != Augmentation() and len(data.shape) != 3:
        raise ValueError(
            f"augmentation is for images (C, H, W) and {data.name!r} holds {'×'.join(map(str, data.shape))}; "
            "leave it out, or set augment=false"
        )
    if 2 * wanted.cutout > (side := min(data.shape[-2:], default=0)):
        raise ValueError(
            f"augmentation cutout = {wanted.cutout} pixels covers more than half the side of {data.name!r}'s "
            f"images, {side} pixels; set it to {side // 2} or less"
        )
    return wanted


def optimizer_of(
    session: Training, config: TrainConfig, *, fused: bool
) -> torch.optim.Optimizer:
    groups = session.param_groups(weight_decay=config.weight_decay)
    if config.optimizer == "adadelta":
        return torch.optim.Adadelta(groups, lr=config.lr)
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            groups,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            fused=fused,
        )
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, lr=config.lr, fused=fused)
