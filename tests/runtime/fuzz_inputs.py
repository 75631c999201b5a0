"""Inputs as programs have them: strided, expanded, behind an offset, with NaN and
infinities in them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
from torch import Tensor


def odd(rng: random.Random, x: Tensor) -> tuple[str, Tensor]:
    """The same shape, and something unusual about its memory or its numbers."""
    choices: dict[str, Callable[[], Tensor]] = {
        "plain": lambda: x,
        "transposed": lambda: x.mT.contiguous().mT if x.ndim > 1 else x,
        "batch last": lambda: x.movedim(0, -1).contiguous().movedim(-1, 0),
        "every second": lambda: torch.stack([x, x], -1).flatten(-2)[..., ::2],
        "behind an offset": lambda: torch.cat([x.flatten(), x.flatten()])[
            x.numel() :
        ].view(x.shape),
        "expanded": lambda: x[:1].expand(x.shape),
        "channels last": lambda: (
            x.to(memory_format=torch.channels_last) if x.ndim == 4 else x
        ),
        "wants gradients": lambda: (
            x.clone().requires_grad_() if x.is_floating_point() else x
        ),
        "flipped": lambda: x.flip(0),
    }
    if x.is_floating_point() and x.numel():
        at = rng.randrange(x.numel())
        number = rng.choice([math.nan, math.inf, -math.inf])
        choices |= {
            f"a {number}": lambda: (
                x.flatten().index_fill(0, torch.tensor(at), number).view(x.shape)
            ),
            "negated view": lambda: torch._neg_view(x),
            "huge": lambda: x * 1e4,
            "zero": lambda: x * 0,
            "tiny": lambda: x * 1e-20,
        }
    name = rng.choice(list(choices))
    return name, choices[name]()
