"""The learning rate as a pure function of how many epochs are done."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import nn

from tersify.lab.trainer.config import TrainConfig

MOST_FACTOR = 4.0  # by which the size of the weights may raise or lower a rate


def with_rate_of(model: nn.Module, config: TrainConfig) -> TrainConfig:
    """The config with the rate that fits the size of the model's weights, where it says
    which size its own fits.
    """
    weights = [
        p.detach() for p in model.parameters() if p.ndim >= 2 and p.requires_grad
    ]
    count = sum(p.numel() for p in weights)
    if config.lr_size is None or not count:
        return config
    size = math.sqrt(sum(float(p.double().square().sum()) for p in weights) / count)
    # The square root is a compromise between a fixed rate and one that is proportional
    # to the weights.
    factor = min(max(math.sqrt(size / config.lr_size), 1 / MOST_FACTOR), MOST_FACTOR)
    rates = tuple(rate * factor for rate in config.rates)
    return replace(
        config, lr=config.lr * factor, rates=rates, final_lr=config.final_lr * factor
    )


def learning_rate(config: TrainConfig, done: float) -> float:
    """The rate after `done` epochs: 0 at the start, fractional inside an epoch, below
    `config.epochs`.

    A warm-up takes half of the run at most: recipes write it in epochs, and a short run
    would end before its rate came.
    """
    stretch = config.epochs / config.over if config.over else 1.0
    warmup = min(config.warmup_epochs * stretch, config.epochs / 2)
    rate = _scheduled(config, done, stretch, warmup)
    return rate * done / warmup if done < warmup else rate


def _scheduled(
    config: TrainConfig, done: float, stretch: float, warmup: float
) -> float:
    if config.schedule == "step":
        # 1e-9 keeps a boundary that rounding put just below its epoch.
        return config.lr * config.gamma ** math.floor(
            done / (config.step_epochs * stretch) + 1e-9
        )
    if config.schedule == "multistep":
        # Milestones count epochs from 1, `done` counts from 0.
        passed = sum(
            done + 1e-9 >= (milestone - 1) * stretch for milestone in config.milestones
        )
        if not config.rates:
            return config.lr * config.gamma**passed
        return config.rates[passed - 1] if passed else config.lr
    if config.schedule == "cosine":
        fraction = min(max(done - warmup, 0.0) / max(config.epochs - warmup, 1e-9), 1.0)
        return config.final_lr + (config.lr - config.final_lr) * 0.5 * (
            1 + math.cos(math.pi * fraction)
        )
    return config.lr
