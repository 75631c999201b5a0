"""The entropy of counts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def order0_bits(counts: npt.NDArray[np.float64] | Ints) -> float:
    # so that the sum is the same whoever counted
    used = np.sort(counts[counts > 0].astype(np.float64))
    return float((used * np.log2(used.sum() / used)).sum())
