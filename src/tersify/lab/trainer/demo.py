"""The demo's settings: sparse ternary digits that keep the dense twin's accuracy, in a minute on two cores."""

from __future__ import annotations

from tersify.lab.trainer.config import TrainConfig
from tersify.lab.trainer.job import Job
from tersify.recipe import Recipe


def demo_job(*, seed: int = 0, quick: bool = False) -> Job:
    config = TrainConfig(
        epochs=3 if quick else 60,
        batch_size=64,
        optimizer="adam",
        lr=5e-3,
        schedule="cosine",
        seed=seed,
        device="cpu",
    )
    return Job(target="digits-cnn", data="digits", config=config, recipe=Recipe.load("ternary-log"))
