"""What a prediction is worth: accuracy of the first k, perplexity of a language model,
F1.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def topk_accuracy(
    logits: Tensor, labels: Tensor, ks: Sequence[int] = (1, 3, 5)
) -> dict[int, float]:
    """Percent of rows whose label ranks among the k largest logits, for every k.

    Equal logits rank by class number, so the figure is the same on every device; a NaN
    is never right.
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or not len(labels):
        raise ValueError(
            f"logits must be (N, classes) and labels (N,) with N > 0, "
            f"got {tuple(logits.shape)} and {tuple(labels.shape)}"
        )
    # (N, 1): the logit of the true class.
    own = logits.gather(1, labels[:, None])
    smaller_class = (
        torch.arange(logits.shape[1], device=logits.device) < labels[:, None]
    )
    # `not <=` rather than `>`: it holds for NaN on either side.
    rank = (~(logits <= own) | ((logits == own) & smaller_class)).sum(1)
    return {k: 100.0 * int((rank < k).sum()) / len(labels) for k in ks}


def perplexity(logits: Tensor, targets: Tensor) -> float:
    """exp of the mean cross-entropy: among how many tokens the model might as well have
    guessed evenly.
    """
    return float(
        F.cross_entropy(logits.flatten(0, -2).double(), targets.flatten()).exp()
    )


def f1(predicted: Tensor, labels: Tensor, classes: int | None = None) -> float:
    """Percent: the harmonic mean of precision and recall, of each class, averaged over
    the classes that occur.
    """
    scores = []
    for each in range(
        int(max(predicted.max(), labels.max())) + 1 if classes is None else classes
    ):
        right = int(((predicted == each) & (labels == each)).sum())
        given, there = int((predicted == each).sum()), int((labels == each).sum())
        if given + there:
            scores.append(2 * right / (given + there))
    return 100.0 * sum(scores) / len(scores)


def answer_f1(answer: str, truths: Sequence[str]) -> float:
    """Percent of words shared by an answer to a question and the nearest of its true
    ones, as F1 (SQuAD's rule).

    Case, punctuation and articles do not count.
    """
    if not truths:
        raise ValueError(
            "a question needs at least one true answer; give [''] where it has none"
        )
    given = _words(answer)
    return max(_overlap(given, _words(truth)) for truth in truths)


def _overlap(given: list[str], true: list[str]) -> float:
    if not given or not true:
        return 100.0 * (given == true)
    return 200.0 * (Counter(given) & Counter(true)).total() / (len(given) + len(true))


def _words(text: str) -> list[str]:
    plain = text.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()
