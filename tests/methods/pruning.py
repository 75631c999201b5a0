"""Short words for tests of pruning."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import tersify
from tersify import Recipe, Rule, Session
from tersify.methods import Prune


def begin(
    model: nn.Module,
    weights: Any = "*",
    epochs: int = 1,
    calibration: Any = None,
    example: Any = None,
    **settings: Any,
) -> Session:
    recipe = Recipe(rules=[Rule(weights=weights, methods=[Prune(**settings)])])
    return tersify.attach(
        model,
        recipe,
        epochs=epochs,
        steps_per_epoch=1,
        calibration=calibration,
        example=example,
    )


def pruned_at_once(
    model: nn.Module, weights: Any = "*", calibration: Any = None, **settings: Any
) -> nn.Module:
    recipe = Recipe(rules=[Rule(weights=weights, methods=[Prune(**settings)])])
    tersify.compress_(model, recipe, calibration=calibration)
    return model


def zero_fraction(weight: Tensor) -> float:
    return float((weight == 0).float().mean())


def train(
    model: nn.Module, session: Session, loss, steps: int, lr: float = 0.1
) -> None:
    optimizer = torch.optim.SGD(session.param_groups(), lr=lr)
    for _ in range(steps):
        session.step()
        optimizer.zero_grad()
        (loss(model) + session.penalty()).backward()
        optimizer.step()
