"""The learning rate as a pure function of how many epochs are done."""

from __future__ import annotations

import math

from tersify.lab.trainer.config import TrainConfig


def learning_rate(config: TrainConfig, done: float) -> float:
    """The rate after `done` epochs: 0 at the start, fractional inside an epoch, below `config.epochs`.

    A warm-up takes half of the run at most: recipes write it in epochs, and a short run would end before its rate came.
    """
    stretch = config.epochs / config.over if config.over else 1.0
    warmup = min(config.warmup_epochs * stretch, config.epochs / 2)
    rate = _scheduled(config, done, stretch, warmup)
    return rate * done / warmup if done < warmup else rate


def _scheduled(config: TrainConfig, done: float, stretch: float, warmup: float) -> float:
    if config.schedule == "step":
        return config.lr * config.gamma ** math.floor(done / (config.step_epochs * stretch) + 1e-9)
    if config.schedule == "multistep":
        passed = sum(done + 1e-9 >= (milestone - 1) * stretch for milestone in config.milestones)
        if not config.rates:
            return config.lr * config.gamma**passed
        return config.rates[passed - 1] if passed else config.lr
    if config.schedule == "cosine":
        share = min(max(done - warmup, 0.0) / max(config.epochs - warmup, 1e-9), 1.0)
        return config.final_lr + (config.lr - config.final_lr) * 0.5 * (1 + math.cos(math.pi * share))
    return config.lr
