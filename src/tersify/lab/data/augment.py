"""Pad-crop, flip and Cutout for a whole batch at once, wherever it lives."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tersify.lab.data.types import Augmentation


class Draws(NamedTuple):
    """What one batch drew, (N,) int64 each: the crop's corner, mirrored or not,
    Cutout's centre.
    """

    top: Tensor
    left: Tensor
    mirrored: Tensor
    centre_y: Tensor
    centre_x: Tensor


def augment(images: Tensor, a: Augmentation, generator: torch.Generator) -> Tensor:
    """Training images, each changed in its own way. What the padding and Cutout leave
    empty is 0 (black).
    """
    if a == Augmentation():
        return images
    return apply_draws(images, a, draw(images, a, generator))


def draw(images: Tensor, a: Augmentation, generator: torch.Generator) -> Draws:
    """Drawn where the generator lives: a CPU generator gives every device the same
    images.
    """
    height, width = images.shape[-2:]
    corners = 2 * a.crop_padding + 1
    highs = torch.tensor(
        [[corners], [corners], [2 if a.flip else 1], [height], [width]]
    )
    uniform = torch.rand(
        5,
        len(images),
        generator=generator,
        device=generator.device,
        dtype=torch.float64,
    )
    # Scaled doubles instead of randint, which would take one call for each bound.
    numbers = (uniform * highs.to(generator.device, non_blocking=True)).long()
    return Draws(*numbers.to(images.device, non_blocking=True))


def apply_draws(images: Tensor, a: Augmentation, draws: Draws) -> Tensor:
    """A pure function of its arguments, so that torch.compile takes it whole."""
    count, channels, height, width = images.shape
    y = torch.arange(height, device=images.device)
    x = torch.arange(width, device=images.device)
    source_y = draws.top[:, None] + y
    source_x = draws.left[:, None] + torch.where(
        draws.mirrored[:, None] == 1, width - 1 - x, x
    )
    padded = F.pad(images, (a.crop_padding,) * 4)
    # (N, H, W): where each pixel lies in the padded image, flattened. One gather crops
    # and mirrors all images, each in its own way.
    index = source_y[:, :, None] * padded.shape[3] + source_x[:, None, :]
    flat = index.view(count, 1, height * width).expand(-1, channels, -1)
    out = padded.flatten(2).gather(2, flat).view(images.shape)
    if not a.cutout:
        return out
    hit_y = _inside(y, draws.centre_y, a.cutout)
    hit_x = _inside(x, draws.centre_x, a.cutout)
    return out.masked_fill((hit_y[:, :, None] & hit_x[:, None, :])[:, None], 0)


def _inside(position: Tensor, centre: Tensor, size: int) -> Tensor:
    """(N, length): `size` pixels around each centre; they may hang over the edge
    (DeVries and Taylor).
    """
    start = centre[:, None] - size // 2
    return (position >= start) & (position < start + size)
