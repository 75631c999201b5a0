"""How often the right class is among the first k."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def topk_accuracy(logits: Tensor, labels: Tensor, ks: Sequence[int] = (1, 3, 5)) -> dict[int, float]:
    """Percent of rows whose label ranks among the k largest logits, for every k.

    Equal logits rank by class number, so the figure is the same on every device; a NaN is never right.
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or not len(labels):
        raise ValueError(
            f"logits must be (N, classes) and labels (N,) with N > 0, "
            f"got {tuple(logits.shape)} and {tuple(labels.shape)}"
        )
    own = logits.gather(1, labels[:, None])
    smaller_class = torch.arange(logits.shape[1], device=logits.device) < labels[:, None]
    # `not <=` rather than `>`: it holds for NaN on either side.
    rank = (~(logits <= own) | ((logits == own) & smaller_class)).sum(1)
    return {k: 100.0 * int((rank < k).sum()) / len(labels) for k in ks}
