"""attach: a recipe is bound to a model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from tersify.calibration import Calibration
from tersify.recipe import Recipe, training_length
from tersify.session.session import Session
from tersify.units import Example


def attach(
    model: nn.Module,
    recipe: str | Path | Recipe,
    *,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    steps: int | None = None,
    calibration: Calibration | Iterable[tuple[Any, Any]] | None = None,
    example: Example | None = None,
    **settings: Any,
) -> Session:
    """Bind a recipe to a model. Make the optimizer afterwards, from
    `session.param_groups()`.

    Args:
        model: any module; its class and its forward stay as they are.
        recipe: a `Recipe`, a TOML file, or the name of a ready recipe.
        epochs: how long training takes, with `steps_per_epoch`; a recipe with schedules must know it.
        steps_per_epoch: batches in an epoch.
        steps: the length of training in batches, in place of the two above.
        calibration: batches (inputs, targets) for methods that ask how much each weight matters; with a loss
            other than cross-entropy, a `Calibration`.
        example: an input of the model, for methods that prune filters, neurons or heads: it tells which of them go
            together, as those that meet in a residual addition must.
        **settings: go before the recipe's own: `attach(model, "ternary-target", sparsity=0.8, steps=1000)`.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"a recipe is bound to a torch.nn.Module, got a {type(model).__name__}"
        )
    chosen = Recipe.load(recipe).with_settings(settings)
    length = training_length(chosen, epochs, steps_per_epoch, steps)
    return Session(
        model,
        chosen,
        epochs=length[0],
        steps_per_epoch=length[1],
        calibration=None if calibration is None else Calibration.of(calibration),
        example=example,
    )
