"""The loss: cross-entropy and, with a teacher, the distance to the teacher's softened
answers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tersify.lab.data import Data
from tersify.lab.stored_networks import load_network
from tersify.lab.trainer.config import TrainConfig
from tersify.lab.trainer.evaluation import check_fits


class Objective:
    """`(1 − w)·CE + w·T²·KL(teacher/T ‖ student/T)` with w = `teacher_weight`, T =
    `teacher_temperature`.
    """

    def __init__(
        self, config: TrainConfig, teacher: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self._config = config
        self._teacher = teacher

    def __call__(self, images: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        # A language model gives logits for every token, which count like so many
        # images.
        logits = logits.flatten(0, -2)
        labels = labels if labels.is_floating_point() else labels.flatten()
        loss = F.cross_entropy(
            logits, labels, label_smoothing=self._config.label_smoothing
        )
        if self._teacher is None:
            return loss
        weight, temperature = (
            self._config.teacher_weight,
            self._config.teacher_temperature,
        )
        with torch.no_grad():
            wanted = F.log_softmax(
                self._teacher(images).flatten(0, -2).float() / temperature, 1
            )
        given = F.log_softmax(logits.float() / temperature, 1)
        distance = F.kl_div(given, wanted, reduction="batchmean", log_target=True)
        # T² restores the size of the gradients, which fall with 1/T² (Hinton et al.
        # 2015).
        return (1 - weight) * loss + weight * temperature**2 * distance


def load_teacher(config: TrainConfig, data: Data, outputs: int) -> nn.Module | None:
    """The network to learn from, which must take the same images and give as many
    logits as the student.
    """
    if not config.teacher:
        return None
    teacher = load_network(Path(config.teacher), remedy="a teacher must be one")
    try:
        found = check_fits(teacher, data)
    except ValueError as problem:
        raise ValueError(
            f"the teacher {config.teacher} does not fit: {problem}"
        ) from None
    if found != outputs:
        raise ValueError(
            f"the teacher {config.teacher} gives {found} logits and the network {outputs}; "
            "both must have the same classes: choose another teacher"
        )
    return teacher
