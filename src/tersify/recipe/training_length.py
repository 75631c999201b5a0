"""How long training takes, from what a caller says of it."""

from __future__ import annotations

from tersify.recipe.recipe import Recipe


def training_length(
    recipe: Recipe, epochs: int | None, steps_per_epoch: int | None, steps: int | None
) -> tuple[int, int]:
    """Epochs and steps in each; a run that is given in steps counts as one epoch."""
    for what, value in (
        ("epochs", epochs),
        ("steps_per_epoch", steps_per_epoch),
        ("steps", steps),
    ):
        if value is not None and value < 1:
            raise ValueError(f"{what} must be at least 1, got {value}")
    if steps is not None:
        if (epochs, steps_per_epoch) != (None, None):
            raise ValueError(
                "the length of training is steps, or epochs and steps_per_epoch; give one of these"
            )
        return 1, steps
    if recipe.needs_length and steps_per_epoch is None:
        raise ValueError(
            "the recipe has schedules, which must know how long training takes; "
            "give epochs= and steps_per_epoch=, or steps="
        )
    # Without schedules the length is never asked for, so any will do.
    return epochs or 1, steps_per_epoch or 1
