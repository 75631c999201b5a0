"""Mixup: pairs of images laid over each other, to be answered with both labels (Zhang
et al. 2018).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def mix(
    images: Tensor, labels: Tensor, *, classes: int, fraction: float
) -> tuple[Tensor, Tensor]:
    """About `fraction` of the images are mixed, in any proportion, each with the one that
    mirrors its place in the batch.

    The targets become probabilities (N, classes). Batches are shuffled, so partners are
    random already.
    """
    # Uniform proportions are Beta(1, 1) of mixup (Zhang et al. 2018).
    chosen, proportion = torch.rand(2, len(images), device=images.device)
    own = torch.where(chosen < fraction, proportion, 1.0)
    targets = F.one_hot(labels, classes).float()
    own_of_pixels = own.to(images.dtype).view(-1, *[1] * (images.ndim - 1))
    return torch.lerp(images.flip(0), images, own_of_pixels), torch.lerp(
        targets.flip(0), targets, own[:, None]
    )
