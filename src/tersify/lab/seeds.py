"""One seed for every generator a training run draws from."""

from __future__ import annotations

import random

import numpy as np
import torch


def set_seed(seed: int) -> None:
    """Seeds Python, numpy and torch (with every accelerator torch knows)."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be 0..{2**32 - 1}, got {seed}")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
