"""Compression without training: one verb, for weights that are as they shall be."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tersify.calibration import Calibration
from tersify.norm_shifts import follow_, moments_of
from tersify.recipe import Recipe
from tersify.session import Session
from tersify.tensor import CompressedModel
from tersify.units import Example


@torch.no_grad()
def compress_(
    model: nn.Module,
    recipe: str | Path | Recipe,
    *,
    calibration: Calibration | Iterable[tuple[Any, Any]] | None = None,
    example: Example | None = None,
    **settings: Any,
) -> CompressedModel:
    """Compress without training: the model's weights become the compressed ones, in
    place.

    Args:
        model: the module to compress.
        recipe: as for `attach`; one that has to train first gives poor weights here.
        calibration: batches (inputs, targets); batch norms also move their statistics as far as the new weights moved
            what enters them on these.
        example: as for `attach`.
        **settings: as for `attach`.
    """
    # A method that fails half way must leave the weights as they were.
    before = [
        (tensor, tensor.detach().clone())
        for tensor in (*model.parameters(), *model.buffers())
    ]
    data = None if calibration is None else Calibration.of(calibration)
    chosen = Recipe.load(recipe).with_settings(settings)
    moments = None if data is None else moments_of(model, data)
    session = Session(
        model, chosen, epochs=1, steps_per_epoch=1, calibration=data, example=example
    )
    try:
        session.advance_to_end()
        if data is not None and moments is not None:
            follow_(model, moments, data)
        packed = session.pack()
    except BaseException:
        session._detach()
        for tensor, value in before:
            tensor.copy_(value)
        raise
    session.bake_()
    return packed
